"""Papers that more than one method comes from."""

from geartrain.runtime.strategy import Paper

PS_P2P_RING = Paper(
    title="Performance Analysis and Comparison of Distributed Machine Learning Systems",
    authors="Salem Alqahtani, Murat Demirbas",
    year=2019,
    where="arXiv 1909.02061",
    part="abstract; the closed forms are derived, the paper's own were not read",
)
