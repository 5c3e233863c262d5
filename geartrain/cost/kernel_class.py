"""Kinds of kernels that are priced alike, told by the name of the operation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

KernelClass = Literal[
    "product",
    "convolution",
    "attention",
    "normalisation",
    "reduction",
    "elementwise",
    "copy",
    "concatenation",
    "lookup",
    "scatter",
    "update",
]

_NAMES: Mapping[KernelClass, str] = {
    "product": "mm addmm bmm baddbmm mv addmv dot vdot ger addbmm _addmm_activation",
    "normalisation": "_softmax _log_softmax _softmax_backward_data _log_softmax_backward_data",
    "reduction": "sum mean amax amin max min argmax argmin prod any all norm linalg_vector_norm var std var_mean "
    "std_mean topk sort cumsum logsumexp "
    "nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward mse_loss squares",
    "copy": "clone copy copy_ _to_copy contiguous zeros ones full zeros_like ones_like full_like fill_ zero_ arange "
    "constant_pad_nd slice_backward select_backward repeat roll flip unfold_backward new_zeros merge move",
    "concatenation": "cat stack",
    "lookup": "embedding _embedding_bag _embedding_bag_forward_only index_select gather index take take_along_dim",
    "scatter": "embedding_dense_backward _embedding_bag_dense_backward index_add index_add_ index_put index_put_ "
    "_index_put_impl_ index_copy_ scatter scatter_ scatter_add scatter_add_ scatter_reduce_ "
    "max_pool2d_with_indices_backward masked_scatter",
    "update": "update",
}
_CLASSES: Mapping[str, KernelClass] = {name: kind for kind, names in _NAMES.items() for name in names.split()}


def kernel_class(op: str) -> KernelClass:
    """The kind of an operation, told by its name, like "aten.addmm.default".

    What is known by no name computes element by element, as most operations do.

    Example:
        >>> kernel_class("aten.native_layer_norm_backward.default"), kernel_class("aten.gelu.default")
        ('normalisation', 'elementwise')
    """
    base = op.split(".")[1] if "." in op else op
    if base in _CLASSES:
        return _CLASSES[base]
    if "conv" in base:
        return "convolution"
    if "attention" in base:
        return "attention"
    if "norm" in base:
        return "normalisation"
    # An optimizer that takes all tensors at a time runs operations on lists of them.
    return "update" if base.startswith(("_foreach", "_fused")) else "elementwise"
