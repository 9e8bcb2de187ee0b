"""How a reconstruction scales, and what limits it: measured, accounted for, compared.

``efficiency`` has the formulas of scaling and ``published`` the measurements of others.
"""

from shardinv.study.analysis.efficiency import Scaling, scaling, work_multiplier
from shardinv.study.published import PublishedPoint, published_scaling

__all__ = ["PublishedPoint", "Scaling", "published_scaling", "scaling", "work_multiplier"]
