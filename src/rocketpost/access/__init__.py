"""Access control: users, rules, decisions and signatures. Pure.

``table`` holds users and rules and checks changes of them, ``decision`` decides by them, and
``signature`` is the proof by which a request names its user. Servers apply it
(``server.access``); ``mqadmin access`` explains decisions with the same code.
"""
