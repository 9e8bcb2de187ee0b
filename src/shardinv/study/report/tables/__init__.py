"""What the report says in tables."""

from shardinv.study.report.tables.machines import machines, versions
from shardinv.study.report.tables.operations import longest_kernels, operations
from shardinv.study.report.tables.points import factors, points
from shardinv.study.report.tables.table import Column, Table

__all__ = [
    "Column",
    "Table",
    "factors",
    "longest_kernels",
    "machines",
    "operations",
    "points",
    "versions",
]
