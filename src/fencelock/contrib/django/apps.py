"""The app of Django, which reads the setting ``FENCELOCK``."""

from django.apps import AppConfig
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

import fencelock


class FencelockConfig(AppConfig):
    """Passes the setting ``FENCELOCK`` to `fencelock.configure`. Nothing connects yet."""

    name = "fencelock.contrib.django"
    label = "fencelock"

    def ready(self) -> None:
        """Configure the default client.

        Raises:
            ImproperlyConfigured: the setting is not usable, or a client has connected before.

        """
        if hasattr(settings, "FENCELOCK"):
            try:
                fencelock.configure(**settings.FENCELOCK)
            except (TypeError, fencelock.ConfigError) as error:
                raise ImproperlyConfigured(f"FENCELOCK: {error}") from error
