"""Options of all sources about rows: the form of properties and bodies, and filters.

Spark 4.3 plans a frame of a Python source once, and keeps that plan for later queries of the frame
and for other uses in one query. Rows that filters have pruned are missing there. So a frame takes
filters only if the user says that it serves one query.
"""

from __future__ import annotations

from dataclasses import dataclass

from rocketpost.errors import ConfigError
from rocketpost.settings import option
from rocketpost.spark.body_options import BodyOptions, check_choice


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOptions(BodyOptions):
    """Options about the rows of messages."""

    properties_format: str = option("propertiesFormat", "map")
    read_decoded: bool = option("readDecoded", True)
    body_errors: str = option("bodyErrors", "fail")
    filter_pushdown: str = option("filterPushdown", "false")

    def check_rows(self) -> None:
        """Check these options.

        Raises:
            ConfigError: An option is not valid, or not valid together with another.
        """
        if self.filter_pushdown == "true":
            raise ConfigError(
                "filterPushdown=true is not safe: Spark 4.3 keeps the filters of the "
                "first query of a frame, and a second query of that frame misses the rows "
                "that they excluded. With filterPushdown=once you promise that every "
                "query loads its own frame"
            )
        check_choice("filterPushdown", self.filter_pushdown, "false", "once")
        check_choice("propertiesFormat", self.properties_format, "map", "string", "none")
        self.check_bodies()
        check_choice("bodyErrors", self.body_errors, "fail", "null", "keep")
        if self.body_errors != "fail" and self.body_format == "bytes":
            raise ConfigError("bodyErrors needs a bodyFormat: plain bytes are always valid")
        if self.body_format != "bytes" and not self.read_decoded:
            raise ConfigError(f"bodyFormat={self.body_format} needs readDecoded=true")

    @property
    def takes_filters(self) -> bool:
        """Whether the filters of a query reduce the messages that are read."""
        return self.filter_pushdown == "once"
