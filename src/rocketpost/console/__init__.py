"""The console: a web application that shows and operates a cluster.

``server`` runs it, ``app`` has the table of pages. ``collect`` asks brokers once a round, and all
browsers read its snapshot. ``views`` make the pages, ``actions`` change things after a preview,
``access`` has users and sessions. The console talks to servers through the client only.
"""
