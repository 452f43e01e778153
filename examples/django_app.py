"""Django: a view that only one request at a time enters, on all machines together.

    FENCELOCK_CONNECT=tcp://10.0.0.1:4040 python examples/django_app.py runserver

It is a project in one file. What you copy is the app among INSTALLED_APPS, the setting FENCELOCK,
and `publish`: each process connects when it first needs a lock, so it does not matter whether the
server forks before or after. `python examples/django_app.py withlock nightly -- ./job.sh` runs a
command under a lock of the same cluster.
"""

from __future__ import annotations

import sys
from typing import Any

import django
from django.conf import settings
from django.core.management import execute_from_command_line
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, JsonResponse
from django.urls import path

from fencelock import LockTimeoutError
from fencelock.contrib.django import lock

if not settings.configured:
    settings.configure(
        ROOT_URLCONF=__name__,
        INSTALLED_APPS=["fencelock.contrib.django"],
        FENCELOCK={"label": "shop"},  # The environment names the cluster; or addresses=..., here.
        ALLOWED_HOSTS=["*"],
        SECRET_KEY="of an example",
        DEBUG=False,
    )
    django.setup()


def publish(request: HttpRequest, page: str) -> JsonResponse:
    try:
        with lock(f"pages/{page}", timeout=5) as hold:
            return JsonResponse({"page": page, "fence": hold.fence})
    except LockTimeoutError:
        return JsonResponse({"error": f"{page} is being published"}, status=409)


urlpatterns: list[Any] = [path("pages/<str:page>/publish", publish)]
application = get_wsgi_application()

if __name__ == "__main__":
    execute_from_command_line(sys.argv)
