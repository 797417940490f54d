"""Penstock under the APIs of other libraries: taskiq, dramatiq, Django, FastAPI, Airflow
and pytest.

One module per library, imported by the program that uses it; each needs the extra of its name,
such as ``pip install 'penstock[taskiq]'``. They use the public verbs only. docs/integrations.md
describes them.
"""
