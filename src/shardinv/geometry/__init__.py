"""Boxes, partitions, tiles and transfers: who holds what, and who must send what to whom.

Everything here is arithmetic on tuples of integers. No torch, no process, no message: every rank
computes the same answer from the same numbers, which is why a decision taken here is taken alike
everywhere.
"""

from shardinv.geometry.box import Box
from shardinv.geometry.deal import deal, deal_near, imbalance
from shardinv.geometry.partition import Partition, balanced_cuts, choose_mesh
from shardinv.geometry.placing import place_ranks
from shardinv.geometry.tiles import Tile, TileGrid
from shardinv.geometry.transfers import Layout, Plan, Transfer, plan_transfers

__all__ = [
    "Box",
    "Layout",
    "Partition",
    "Plan",
    "Tile",
    "TileGrid",
    "Transfer",
    "balanced_cuts",
    "choose_mesh",
    "deal",
    "deal_near",
    "imbalance",
    "place_ranks",
    "plan_transfers",
]
