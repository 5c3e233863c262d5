"""Papers that more than one method comes from."""

from geartrain.runtime.strategy import Paper

PS_P2P_RING = Paper(
    title="Performance Analysis and Comparison of Distributed Machine Learning Systems",
    authors="Salem Alqahtani, Murat Demirbas",
    year=2019,
    where="arXiv 1909.02061",
    part="abstract; the closed forms are derived, the paper's own were not read",
)

LOCAL_SGD = Paper(
    title="Local SGD Converges Fast and Communicates Little",
    authors="Sebastian U. Stich",
    year=2018,
    where="arXiv 1805.09767",
    part="recalled; FedAvg is arXiv 1602.05629, post-local SGD arXiv 1808.07217",
)

COCOD_SGD = Paper(
    title="Faster Distributed Deep Net Training: Computation and Communication Decoupled Stochastic Gradient Descent",
    authors="Shuheng Shen, Linli Xu, Jingchang Liu, Xianfeng Liang, Yifei Cheng",
    year=2019,
    where="IJCAI 2019, arXiv 1906.12043",
    part="abstract and the appendix's equations 9 and 10",
)

PIPE_SGD = Paper(
    title="Pipe-SGD: A Decentralized Pipelined SGD Framework for Distributed Deep Net Training",
    authors="Youjie Li and others",
    year=2018,
    where="arXiv 1811.03619",
    part="recalled: a pipeline of width 2, without compression",
)

DASGD = Paper(
    title="DaSGD: Squeezing SGD Parallelization Performance in Distributed Training Using Delayed Averaging",
    authors="Qinggang Zhou, Yawen Zhang, Pengcheng Li, Xiaoyong Liu, Jun Yang, Runsheng Wang, Ru Huang",
    year=2020,
    where="arXiv 2006.00441",
    part="abstract and the authors' code",
)

DILOCO = Paper(
    title="DiLoCo: Distributed Low-Communication Training of Language Models",
    authors="Arthur Douillard and others",
    year=2023,
    where="arXiv 2311.08105",
    part="algorithm 1, recalled",
)

AD_PSGD_SPECTRAL = Paper(
    title="Improving Efficiency in Large-Scale Decentralized Distributed Training",
    authors="Wei Zhang and others",
    year=2020,
    where="arXiv 2002.01119",
    part="abstract; D-PSGD is arXiv 1705.09056, AD-PSGD arXiv 1710.06952",
)

GEN_ASYNC = Paper(
    title="Distributed SGD Generalizes Well Under Asynchrony",
    authors="Jayanth Regatti, Gaurav Tendolkar, Yi Zhou, Abhishek Gupta, Yingbin Liang",
    year=2019,
    where="57th Allerton Conference, arXiv 1909.13391",
    part="abstract; the algorithm is the standard reading of it",
)

APAM = Paper(
    title="Parallel and Distributed Asynchronous Adaptive Stochastic Gradient Methods",
    authors="Yangyang Xu, Yibo Xu, Yonggui Yan, Colin Sutcher-Shepard, Leopold Grinberg, Jie Chen",
    year=2020,
    where="arXiv 2002.09095",
    part="algorithm 1, the distributed version; the rule as in the authors' code",
)

DEAR = Paper(
    title="DeAR: Accelerating Distributed Deep Learning with Fine-Grained All-Reduce Pipelining",
    authors="Lin Zhang, Shaohuai Shi, Xiaowen Chu, Wei Wang, Bo Li, Chengjian Liu",
    year=2023,
    where="ICDCS 2023, arXiv 2302.12445",
    part="abstract and the authors' code; the closed forms are derived",
)

ADASCALE = Paper(
    title="AdaScale SGD: A User-Friendly Algorithm for Distributed Training",
    authors="Tyler B. Johnson, Pulkit Agrawal, Haijie Gu, Carlos Guestrin",
    year=2020,
    where="arXiv 2007.05105",
    part="the earlier version was read in full, this one in its abstract",
)

COMM_SURVEY = Paper(
    title="A Quantitative Survey of Communication Optimizations in Distributed Deep Learning",
    authors="Shaohuai Shi, Zhenheng Tang, Xiaowen Chu, Chengjian Liu, Wei Wang, Bo Li",
    year=2021,
    where="IEEE Network 35(3), arXiv 2005.13247",
    part="abstract, the authors' code and their table of results",
)

ABS_SGD = Paper(
    title="ABS-SGD: A Delayed Synchronous Stochastic Gradient Descent Algorithm with Adaptive Batch Size for "
    "Heterogeneous GPU Clusters",
    authors="Xin Zhou, Ling Chen, Houming Wu",
    year=2023,
    where="arXiv 2308.15164",
    part="abstract; the start rule, weighting and data are our reading",
)

SPP = Paper(
    title="Efficient Pipeline Planning for Expedited Distributed DNN Training",
    authors="Ziyue Luo, Xiaodong Yi, Guoping Long, Shiqing Fan, Chuan Wu, Jun Yang, Wei Lin",
    year=2022,
    where="INFOCOM 2022, arXiv 2204.10562",
    part="abstract; the algorithms are recalled, their bound was checked by numbers",
)

GEAR_TRAINING = Paper(
    title="Gear Training: A new way to implement high-performance model-parallel training",
    authors="Hao Dong, Shuai Li, Dongchang Xu, Yi Ren, Di Zhang",
    year=2018,
    where="arXiv 1806.03925",
    part="abstract: the model split, its parts trained separately at different speeds; all else is our choice",
)

SWITCHML = Paper(
    title="Scaling Distributed Machine Learning with In-Network Aggregation",
    authors="Amedeo Sapio, Marco Canini, Chen-Yu Ho, Jacob Nelson, Panos Kalnis, Changhoon Kim, Arvind Krishnamurthy, "
    "Masoud Moshref, Dan R. K. Ports, Peter Richtarik",
    year=2021,
    where="NSDI 2021, arXiv 1903.06701",
    part="abstract, introduction and the authors' code; algorithms 1 to 4 and the evaluation are recalled",
)
