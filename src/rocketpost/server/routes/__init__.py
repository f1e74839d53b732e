"""The requests that servers answer: routes, their access rules, and the dispatcher."""
