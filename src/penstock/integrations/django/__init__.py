"""Django's Tasks on Penstock, for ``django.tasks`` of Django 6 and the ``django-tasks`` backport.

::

    TASKS = {
        "default": {
            "BACKEND": "penstock.integrations.django.PenstockBackend",
            "OPTIONS": {"url": "http://localhost:8080"},
        }
    }
    INSTALLED_APPS = [..., "penstock.integrations.django"]

``manage.py penstock_worker`` runs the tasks. ``backend`` enqueues, ``results`` reads what became of
a task, ``running`` runs it, ``framework`` finds Django's own classes.
"""

from __future__ import annotations

from penstock.extras import importing

with importing("django", "django"):
    from penstock.integrations.django.backend import PenstockBackend

__all__ = ["PenstockBackend"]
