"""The configuration of gunicorn for gunicorn_app.py."""

preload_app = True
workers = 2
