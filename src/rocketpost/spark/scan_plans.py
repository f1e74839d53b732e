"""A strategy of Spark's planner that saves a copy of every row of a Python data source.

Spark copies the rows of a scan twice: from Arrow into its own format, and then once more by a
projection that is meant for sources with rows of another format. The strategy plans a scan of all
columns without the projection. It is a Java class that Spark's own compiler for generated code
(Janino) compiles from ``ScansWithoutCopy.java``. Only the driver uses it: the tasks run Spark's
classes. Sessions of Spark Connect have no JVM here, and plan as before.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

CLASS_NAME: Final = "rocketpost.ScansWithoutCopy"
_SOURCE: Final = Path(__file__).with_name("ScansWithoutCopy.java")


def save_copies(session: SparkSession) -> None:
    """Let a session plan scans of Python data sources without a second copy of each row.

    May be called any number of times. If the JVM has other classes than the Spark that this package
    requires, the session plans as before, and a warning says why.
    """
    ours: Any = getattr(session, "_jsparkSession", None)
    if ours is None:
        return
    methods = ours.experimental()
    strategies = methods.extraStrategies()
    names = [strategies.apply(at).getClass().getName() for at in range(strategies.length())]
    if CLASS_NAME in names:
        return
    try:
        strategy = _compile(session, ours)
    except Py4JError as error:
        logger.warning("Spark copies each row of a scan twice; its planner is another: %s", error)
        return
    # The name of a setter in Scala, which is no name in Python.
    getattr(methods, "extraStrategies_$eq")(strategies.prepended(strategy))


def _compile(session: SparkSession, ours: Any) -> Any:
    """Return a new strategy for a session of the JVM."""
    jvm: Any = session.sparkContext._jvm
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
    compiler.cook(_SOURCE.read_text("utf-8"))
    (constructor,) = compiler.getClassLoader().loadClass(CLASS_NAME).getConstructors()
    gateway: Any = session.sparkContext._gateway
    arguments = gateway.new_array(jvm.java.lang.Object, 1)
    arguments[0] = ours
    return constructor.newInstance(arguments)
