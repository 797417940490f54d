"""The HTTP server: the broker's verbs for programs in any language.

``app`` is the ASGI application, ``routing`` the table that everything about a path is read
from, ``native`` the door of Penstock's own interface, ``access`` who may do what, ``serve`` the
process around it.
"""
