"""The simulator: the same roles in virtual time under every fault, one history for each seed."""
