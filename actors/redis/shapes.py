"""The scripts that the door knows: no script is executed, each known one is an operation.

Clients send most operations of locks as scripts in Lua, by the text (``EVAL``) or by its SHA1
(``EVALSHA``). A script is recognized by its SHA1, if it is one of a library's releases, or else by
its *normal form*: the tokens of its text, in which white space, comments, kinds of quotes, names of
local variables and the case of commands do not count. A text with the same normal form as a known
one does the same. Any other text is refused: to guess would be to execute half of it.
"""

from __future__ import annotations

import re
from enum import Enum
from functools import cache
from hashlib import sha1


class Operation(Enum):
    """The effect and the reply of a script. "Mine" means: the key's value is the argument.

    Those without a word of their own reply 1 if they took effect, else 0.

    The value of each has the scripts that it is: the SHA1s of those in releases of libraries
    (``docs/redis.md`` names these), and the texts of those that libraries write in their own way,
    and that Redisson has today.
    """

    def __init__(self, *scripts: str) -> None:
        self.texts = [one for one in scripts if " " in one]
        self.digests = [one for one in scripts if " " not in one]

    COMPARE_DELETE = (
        "4e92fdc63815b3a0a2dd1c1df3694de73607c88d",
        "d141b64a0a43e66a8576edaea6123638c0d74b31",
        "a4aada0b36710970eedaaaeec4a6b7d8c78c4f80",
        "00583931c4e4d483f6233879c133c71ed5393f9d",
        "8e4905cee18e7c3188d10f2b8b170e403baed34f",
        "963db4d9f0ccfdb859098be0b29f8b41dc02ed97",
        "2e47b373b4dbd63ee966d2eb9fe24ed6a138ad4e",
        "cf0e94b2e9ffc7e04395cf88f7583fc309985910",
        "c3f8721cbb97f72bc19e972846bd7aaf91901658",
        "18b2a577dbe847b16bebde190d69a1613d68e60e",
        "4920be04acb2576961effa684f14506ea68fe297",
        "59671d8456421a336e9ab0adba2a97d5f5bbb1ae",
        """if redis.call("get", KEYS[1]) == ARGV[1] then return redis.call("del", KEYS[1])
        else return 0 end""",
        """if redis.call("get", KEYS[1]) == ARGV[1] then return redis.call("del", KEYS[1])
        end return 0""",
        """local token = redis.call("get", KEYS[1])
        if not token or token ~= ARGV[1] then return 0 end
        redis.call("del", KEYS[1]) return 1""",
    )
    """Delete the key if it is mine."""
    COMPARE_DELETE_OR_MISSING = (
        "e950836ed1e694540c503ef9972b8de518044d3b",
        """local val = redis.call("get", KEYS[1])
        if val == ARGV[1] then return redis.call("del", KEYS[1])
        elseif val == false then return -1 else return 0 end""",
    )
    """The same, but -1 if there is no such key."""
    DELETE_MINE_OR_MISSING = (
        "241e4ca540a1cc4ec1f32d9eb9f879e607d7e6e5",
        """local identifier = redis.call("get", KEYS[1])
        if not identifier then return redis.status_reply("OK")
        elseif identifier == ARGV[1] then return redis.call("del", KEYS[1])
        else return redis.error_reply("ERROR") end""",
    )
    """The same, but OK if there is no such key, and an error if it is another's."""
    COMPARE_PEXPIRE = (
        "307044d49c8f033fbb885e9e0f1b7fe9e0e60675",
        "ba015a80261b616e7a62d35df0b8e3edbe6c9414",
        "53692746b44cae854b8dfa32b177218bbe40baee",
        "d75bb8b5bd13532ddedd17762e772346e39b321e",
        "e95849a1757fe494b3c802dc09b717d0c074eb21",
        "a7aba3bc5d6e99b3003da8b9d80a63b9f4092ecf",
        "1cac51482acf5858da00f6d685d68f886cd6b6b2",
        """if redis.call("get", KEYS[1]) == ARGV[1] then
        return redis.call("pexpire", KEYS[1], ARGV[2]) else return 0 end""",
        """if redis.call("get", KEYS[1]) == ARGV[1] then
        return redis.call("pexpire", KEYS[1], ARGV[2]) end return 0""",
        """local token = redis.call("get", KEYS[1])
        if not token or token ~= ARGV[1] then return 0 end
        redis.call("pexpire", KEYS[1], ARGV[2]) return 1""",
    )
    """Let the key expire in so many milliseconds if it is mine."""
    COMPARE_EXPIRE = (
        "a2c2e4c111924caec00216d4881ed37a644435ce",
        """if redis.call("get", KEYS[1]) == ARGV[1] then
        return redis.call("expire", KEYS[1], ARGV[2]) else return 0 end""",
        """if redis.call("get", KEYS[1]) == ARGV[1] then
        return redis.call("expire", KEYS[1], ARGV[2]) end return 0""",
    )
    """The same, in seconds."""
    COMPARE_EXPIRE_INVERTED = ("91d2b7405df91e02c3e2389f7f1c089b9f9e2632",)
    """The same, but 0 if it took effect, else 1."""
    ADD_OR_REPLACE_TTL = (
        "a4e8783852e6b949f9ef3a97212805108459a890",
        """local token = redis.call("get", KEYS[1])
        if not token or token ~= ARGV[1] then return 0 end
        local expiration = redis.call("pttl", KEYS[1])
        if not expiration then expiration = 0 end
        if expiration < 0 then return 0 end
        local newttl = ARGV[2]
        if ARGV[3] == "0" then newttl = ARGV[2] + expiration end
        redis.call("pexpire", KEYS[1], newttl) return 1""",
    )
    """Add to the remaining time of a key that is mine and has one, or replace it ("1")."""
    ADD_TTL = ("4a484ac024e9b025224cd9f8e1d59dbf3c15d00d",)
    EXTEND_CODES = (
        "fed16109024d968d9496e4140fe1355bac05ebff",
        """if redis.call("get", KEYS[1]) ~= ARGV[1] then return 1
        elseif redis.call("ttl", KEYS[1]) < 0 then return 2
        else redis.call("expire", KEYS[1], ARGV[2]) return 0 end""",
    )
    """Like `COMPARE_EXPIRE`: 0 if it took effect, 1 if it is not mine, 2 if it has no deadline."""
    EXTEND_CODES_TIME_FIRST = ("2e1257df468c334a0dcc2ca4577c3c13f32fce24",)
    """The same, with the time before the value."""
    COMPARE_PTTL = (
        "f458acd98fe495b8e4ff97c0f53f745f2c4aa252",
        "f5f7bd3a3aa4a63c507c1155c5ea1219b350d992",
        """if redis.call("get", KEYS[1]) == ARGV[1] then
        local pttl = redis.call("pttl", KEYS[1]) return (pttl > 0) and pttl or 0
        else return 0 end""",
    )
    """The remaining time (ms) of a key that is mine, else 0."""
    COMPARE_PTTL_OR_ABSENT = (
        "6484da7d58920897fdc22b7f9afd1a3d47524ea8",
        """if redis.call("get", KEYS[1]) == ARGV[1] then
        return redis.call("pttl", KEYS[1]) else return -3 end""",
    )
    """The same, but as ``PTTL`` has it, and -3 if it is not mine."""
    COMPARE_TTL = (
        "f908d3f43dbcabc68fc0c9ecaf1fa4a285ecdb0a",
        """local identifier = redis.call("get", KEYS[1])
        if not identifier then return redis.error_reply("ERROR")
        elseif identifier == ARGV[1] then return redis.call("ttl", KEYS[1])
        else return redis.error_reply("ERROR") end""",
    )
    """The same in seconds, as ``TTL`` has it, and an error if it is not mine."""
    GET_PTTL = (
        "cd1ae9bb543136ebc0a80a277cd59a7cec83b296",
        "78d2ca48a6dc9ef6892059792a3a0c5237733d64",
        """return { redis.call("get", KEYS[1]), redis.call("pttl", KEYS[1]) }""",
    )
    """Value and remaining time (ms)."""
    COMPARE_SET = ("009e6775acf362b837433e2ab6f2b772e391079e",)
    """Like `COMPARE_PEXPIRE`: OK, or the text ERR."""
    SET_ABSENT = (
        "862f31bf38e9b63ce28d6e9e5143551bb34ef981",
        """return redis.call("set", KEYS[1], ARGV[1], "NX", "PX", ARGV[2])""",
    )
    """Set the key with a deadline if there is none: OK or a null."""
    SET_ABSENT_COUNT = (
        "5688a2541c9edd77746bcd2385e65ff3639a664f",
        """if redis.call("setnx", KEYS[1], ARGV[1]) == 1 then
        redis.call("pexpire", KEYS[1], ARGV[2]) return 1 else return 0 end""",
        """if redis.call("set", KEYS[1], ARGV[1], "NX", "PX", ARGV[2]) then
        return 1 else return 0 end""",
    )
    SET_ABSENT_OR_MINE = ("7fe7b0bc5c4277123d3b46d49d1c5a8bc6e4fe8a",)
    """Set the key with a deadline if it is mine, or if there is none: OK or a null."""
    SET_ABSENT_OR_MINE_OR_ERROR = (
        "c75a9bf1538efcdb1f383acc3e273c5089d57e58",
        """local identifier = redis.call("get", KEYS[1])
        if not identifier or identifier == ARGV[1] then
        return redis.call("set", KEYS[1], ARGV[1], "PX", ARGV[2])
        else return redis.error_reply("ERROR") end""",
    )
    SET_ALLOWED_OR_MINE = (
        "a90bf4be8a6e440e3cc24540eb2f9ff1e16fbcc3",
        "ceb2b2062e40c51a2b3963fd078bc71f11bdc65c",
        """if (redis.call("exists", KEYS[1]) == 0 and ARGV[3] == "yes")
        or redis.call("get", KEYS[1]) == ARGV[1] then
        return redis.call("set", KEYS[1], ARGV[1], "PX", ARGV[2]) end""",
    )
    """The same, but only if it is mine unless the third argument is "yes"."""
    PEXPIRE_OR_SET = (
        "b6b55c439e02c6f52ffb8be7ec8c0d0ac816ea79",
        """if redis.call("get", KEYS[1]) == ARGV[1] then
        return redis.call("pexpire", KEYS[1], ARGV[2])
        elseif redis.call("set", KEYS[1], ARGV[1], "PX", ARGV[2], "NX") then
        return 1 else return 0 end""",
    )
    """The same as `SET_ABSENT_OR_MINE`, with 1 or 0."""
    PEXPIRE_OR_SET_OR_OTHER = (
        "9f614a785a5f9ae8c6396c6b4bf94d2087342603",
        """local current = redis.call("get", KEYS[1])
        if (current == false) then
        return redis.call("set", KEYS[1], ARGV[1], "PX", ARGV[2]) and 1 or 0
        elseif (current == ARGV[1]) then return redis.call("pexpire", KEYS[1], ARGV[2])
        else return -1 end""",
    )
    """The same, but -1 if it is another's."""
    OBTAIN_PREFIX = (
        "eb0c00d98f6f33b4262419a509002884540f30be",
        "80a1b5f2cfccec3b7119ba7721d2127682b691a7",
    )
    """Set all keys with a deadline if none exists, or if all begin like the argument."""
    ALL_SET_ABSENT = (
        "d01fb69e6ecc8bad3ca9bacba9f4f9e96862313f",
        "e5a322e2634ef59a516e8ea150cb085afafee684",
        "96da70f7716f27d278a5218544df37fd8b0a5e4c",
        """for i, key in ipairs(KEYS) do
        if redis.call("exists", key) == 1 then return 0 end end
        for i, key in ipairs(KEYS) do redis.call("set", key, ARGV[1], "PX", ARGV[2]) end
        return #KEYS""",
    )
    """Set all keys with a deadline if none exists: their number or 0."""
    ALL_SET = (
        "acaf90b4697bb48bb5f603e9e613a54df7536c70",
        "1d48b4c6fea2cdadc46b3346de5c2eaf121c7bb3",
        "ce46f80993d5dac20dd066eb301a4e37994bdbed",
        "aed6f382e410db8ba7926d4e5e9aab410bf2a78a",
        """for i, key in ipairs(KEYS) do
        if redis.call("get", key) ~= ARGV[1] then return 0 end end
        for i, key in ipairs(KEYS) do redis.call("set", key, ARGV[1], "PX", ARGV[2]) end
        return #KEYS""",
    )
    """Set all keys with a deadline if all are mine: their number or 0."""
    EACH_DELETE = (
        "517e7ed95f00c0c4a209c6a7afcc6ab797d30b85",
        "0f0f23b9048b36752b5be114f357ba083449f908",
        "e4612211c9f8f51c257e26e056b0a654b3187242",
        """local count = 0 for i, key in ipairs(KEYS) do
        if redis.call("get", key) == ARGV[1] then
        redis.call("del", key) count = count + 1 end end return count""",
    )
    """Delete those keys that are mine: their number."""
    ALL_DELETE = (
        "9470c810040e272ee6c579d8d4331aaf6332a7b1",
        """local values = redis.call("mget", unpack(KEYS))
        for i, _ in ipairs(KEYS) do if values[i] ~= ARGV[1] then return false end end
        redis.call("del", unpack(KEYS)) return redis.status_reply("OK")""",
    )
    """Delete all keys if all are mine: OK or a null."""
    ALL_PEXPIRE = (
        "5a22d7e8431313862816d4416b5e46dd70fc340d",
        """local values = redis.call("mget", unpack(KEYS))
        for i, _ in ipairs(KEYS) do if values[i] ~= ARGV[1] then return false end end
        for _, key in ipairs(KEYS) do redis.call("pexpire", key, ARGV[2]) end
        return redis.status_reply("OK")""",
    )
    ALL_PTTL = ("66e1084c2d842a7e8c271925aae90219fac4e129",)
    """The shortest remaining time (ms) of the keys if all are mine, else a null."""
    UNLOCK_SIGNAL = (
        "6b20b1ed22f1d9a3df1dc2616e9cdd32a13e7740",
        "dc1e6ea4fc20d70a60aa3ab10780c696e74d541e",
        "ae7cc25ea7f8e1bf59f60e7e4d68ebf4c24a97ad",
        "90da91872223f85eb1376a17e3c4df21ace8c54b",
        """if redis.call("get", KEYS[1]) ~= ARGV[1] then return 1 else
        redis.call("del", KEYS[2]) redis.call("lpush", KEYS[2], 1)
        redis.call("pexpire", KEYS[2], ARGV[2]) redis.call("del", KEYS[1]) return 0 end""",
    )
    """`COMPARE_DELETE` with 0 if it took effect, else 1; the second key is the signal's list."""
    RESET_SIGNAL = (
        "596e92cf03683cfede162551b468e60d7d70f81d",
        "1ccce134439127b3c1bfcb9e8d99b7e3431b0daa",
        "347d641ef9f9783e6ce66686792cd09e0a388ea0",
        "afbc8014508f92e446b56567e8ba600e811c1bd5",
        """redis.call("del", KEYS[2]) redis.call("lpush", KEYS[2], 1)
        redis.call("pexpire", KEYS[2], ARGV[2]) return redis.call("del", KEYS[1])""",
    )
    """Delete the key; the second one is the signal's list."""
    RESET_ALL_SIGNAL = (
        "f963562014dc3e1d5fa590368c277c14d4a908e5",
        "b121d3548d693116c3851b63befe947e49f28c7c",
    )
    """Delete all keys that begin with ``lock:``; their number."""
    DELETE_SIGNALS = ("9c5ba59d82f4a4cd52c64eeed90b1476b60b04fd",)
    """Delete the lists of all signals: 0, since there are none."""
    ENTER = (
        "9401052d872adfd0179ef8c8e8c028512707629a",
        "dad0f8d619e548e04f21fb48d50be5034df3adae",
        "149c5a8bf18676fd99e9e6e24923bd64d9b62f94",
        "46b5551ba403d6152a7a6eca122e08728d6c8c66",
        """if ((redis.call("exists", KEYS[1]) == 0)
        or (redis.call("hexists", KEYS[1], ARGV[2]) == 1)) then
        redis.call("hincrby", KEYS[1], ARGV[2], 1) redis.call("pexpire", KEYS[1], ARGV[1])
        return nil end return redis.call("pttl", KEYS[1])""",
    )
    """Redisson's lock: count one more hold of the key if it is mine, or set it if there is none. A
    null, or the remaining time (ms) of another's."""
    ENTER_TOKEN = ("49babb5a1e6a0c5f188c2ae62b93b51cdfd63e45",)
    """The same with the fence: [-1, fence] or [remaining time, -1]. The second key is that of
    tokens."""
    LEAVE = (
        "3ffe249c16dee540ac8ab32e39bd408626b9aff7",
        "778cea8aada230ae060b432fc333adaec85f2f4c",
    )
    """Count one hold less of a key that is mine, and delete it with the last: 1 if that was the
    last, 0 if not, a null if it is not mine. The second key is the channel."""
    LEAVE_OR_MISSING = ("93cfc048f82624d1670a310aa0ad58918c0824a5",)
    """The same, but 1 if there is no such key."""
    LEAVE_ONCE = (
        "6866459238a13a701d42f4971f12d9f3a50e2442",
        """local val = redis.call("get", KEYS[3])
        if val ~= false then return tonumber(val) end
        if (redis.call("hexists", KEYS[1], ARGV[3]) == 0) then return nil end
        local counter = redis.call("hincrby", KEYS[1], ARGV[3], -1)
        if (counter > 0) then redis.call("pexpire", KEYS[1], ARGV[2])
        redis.call("set", KEYS[3], 0, "px", ARGV[5]) return 0
        else redis.call("del", KEYS[1]) redis.call(ARGV[4], KEYS[2], ARGV[1])
        redis.call("set", KEYS[3], 1, "px", ARGV[5]) return 1 end""",
    )
    """The same as `LEAVE`, but a repetition with the same third key has the reply of the first."""
    LEAVE_BY_FORCE = (
        "7e9c80b3d786b95d5d4aaf8fd73adb9775fa6fb1",
        "605e338249a7a1d40df83b04f7658354f883b41b",
        """if (redis.call("del", KEYS[1]) == 1) then
        redis.call(ARGV[2], KEYS[2], ARGV[1]) return 1 else return 0 end""",
    )
    """Delete the key; the second one is the channel."""
    RENEW = (
        "8e19a1ddbdee9138df9f32a480c57addab4353d1",
        """if (redis.call("hexists", KEYS[1], ARGV[2]) == 1) then
        redis.call("pexpire", KEYS[1], ARGV[1]) return 1 end return 0""",
    )
    """`COMPARE_PEXPIRE` with the time before the value."""
    RENEW_EACH = (
        "6a3d31570dc6f4b0bd32bcdc8e75667747c6f635",
        """local result = {} for i = 1, #KEYS, 1 do
        if (redis.call("hexists", KEYS[i], ARGV[i + 1]) == 1) then
        redis.call("pexpire", KEYS[i], ARGV[1]) table.insert(result, 1)
        else table.insert(result, 0) end end return result""",
    )
    """The same for several keys with a value each: a list of 1 or 0."""


def text_of(operation: Operation) -> bytes:
    return operation.texts[0].encode()


_TOKEN = re.compile(
    r"""--\[\[.*?\]\]|--[^\n]*|\s+|(?P<text>"[^"\\]*"|'[^'\\]*')|(?P<name>[A-Za-z_]\w*)"""
    r"""|(?P<number>\d+)|(?P<sign>[=~<>]=|\.\.|[-+*/%^#<>=(){}\[\],.:;])|(?P<other>.)""",
    re.DOTALL,
)

_COMMANDS = frozenset(
    {"get", "set", "setnx", "del", "exists", "expire", "pexpire", "ttl", "pttl", "mget", "lpush"}
    | {"hexists", "hincrby", "px", "ex", "nx", "xx"}
)
"""Texts of which the case does not count."""


def normal_form(text: str) -> tuple[str, ...]:
    """Return the tokens of a script, with local variables numbered as they appear."""
    tokens: list[str] = []
    names: dict[str, str] = {}
    declares = False
    for match in _TOKEN.finditer(text):
        kind, token = match.lastgroup, match.group()
        if kind is None or token == ";":
            continue
        if kind == "text":
            token = token[1:-1]
            token = f'"{token.lower() if token.lower() in _COMMANDS else token}"'
        elif kind == "name":
            if token in ("local", "for"):
                declares = True
            elif declares and token != "in":
                names.setdefault(token, f"${len(names)}")
            elif tokens[-2:] == ["redis", "."] and token == "pcall":
                token = "call"
            token = names.get(token, token)
        if token == "in" or (kind == "sign" and token != ","):
            declares = False
        tokens.append(token)
    return tuple(tokens)


@cache
def _normal_forms() -> dict[tuple[str, ...], Operation]:
    return {normal_form(text): operation for operation in Operation for text in operation.texts}


KNOWN = {digest: operation for operation in Operation for digest in operation.digests}
"""The operation of each SHA1, in lower case."""


TEXT_BYTES_MAX = 8 << 10
"""Limit of the text that is compared (bytes); a longer one is unknown."""


def operation_of(text: bytes) -> tuple[str, Operation | None]:
    """Return the SHA1 of a script, and its operation if it is known."""
    digest = sha1(text, usedforsecurity=False).hexdigest()
    known = KNOWN.get(digest)
    if known is None and len(text) <= TEXT_BYTES_MAX:
        known = _normal_forms().get(normal_form(text.decode("utf-8-sig", errors="replace")))
    return digest, known
