"""The part of TensorFlow Lite's schema (schema.fbs, version 3) that `tflite_check` needs: numbers of types, operators, options."""

from __future__ import annotations

# TensorType to bytes an element; strings and handles have no fixed size.
TYPE_BYTES = {0: 4, 1: 2, 2: 4, 3: 1, 4: 8, 6: 1, 7: 2, 8: 8, 9: 1, 10: 8, 11: 16, 12: 8, 15: 4, 16: 2, 18: 2}
PACKED_BITS = {17: 4, 19: 2, 20: 4}
STRING = 5
ZERO_POINTS = {3: (0, 255), 9: (-128, 127)}  # uint8, int8; wider integers and packed ones are symmetric

CUSTOM = 32

# BuiltinOperator to its BuiltinOptions, 0 where it has none: what computes tensors from tensors. Control flow, recurrent cells,
# hash tables and variables are left out; models of pictures do without them.
# fmt: off
OPERATOR_OPTIONS = {
    0: 11, 1: 5, 2: 10, 3: 1, 4: 2, 5: 94, 6: 38, 8: 0, 9: 8,  # ADD .. FULLY_CONNECTED
    11: 12, 12: 5, 13: 13, 14: 0, 17: 5, 18: 21, 19: 0,  # L2_NORMALIZATION .. RELU
    20: 0, 21: 0, 22: 17, 23: 15, 25: 9, 26: 19, 28: 0, CUSTOM: 0,  # RELU_N1_TO_1 .. CUSTOM
    34: 22, 36: 23, 37: 24, 38: 25, 39: 26, 40: 27, 41: 28, 42: 29, 43: 30,  # PAD .. SQUEEZE
    45: 32, 47: 33, 48: 34, 49: 35, 50: 36, 53: 37, 54: 0, 55: 39, 56: 40, 57: 39,  # STRIDED_SLICE .. MINIMUM
    58: 41, 59: 42, 60: 43, 61: 44, 62: 45, 63: 46, 64: 47, 65: 48, 66: 0, 67: 49,  # LESS .. TRANSPOSE_CONV
    69: 51, 70: 52, 71: 53, 72: 54, 73: 0, 74: 27, 75: 0, 76: 0, 77: 55, 78: 56, 79: 57,  # TILE .. ARG_MIN
    80: 58, 81: 27, 82: 27, 83: 59, 84: 60, 85: 61, 86: 62, 87: 63, 88: 64, 89: 27,  # FAKE_QUANT .. REDUCE_MIN
    90: 65, 91: 27, 92: 66, 93: 67, 94: 68, 95: 72, 96: 73, 97: 74, 98: 75, 99: 76,  # FLOOR_DIV .. SQUARED_DIFFERENCE
    100: 77, 101: 78, 102: 79, 104: 0, 105: 81, 106: 82, 107: 83, 108: 84, 109: 85,  # MIRROR_PAD .. WHERE
    110: 86, 111: 0, 114: 89, 116: 0, 117: 91, 120: 95, 121: 96, 122: 97, 123: 98,  # RANK .. SELECT_V2
    126: 101, 128: 102, 130: 104, 145: 0, 150: 116, 152: 0,  # BATCH_MATMUL .. RELU_0_TO_1
}
# fmt: on
# Without their options these would compute with zeros: pooling, convolutions, CONCATENATION, FULLY_CONNECTED, splits and packs ...
NEEDS_OPTIONS = frozenset({1, 2, 3, 4, 5, 9, 12, 13, 17, 26, 49, 67, 83, 88, 102})

# BuiltinOptions with a vector in them: option type to {field: bytes an element}; all others hold numbers alone.
OPTION_VECTORS = {17: {0: 4}, 30: {0: 4}}

# Numbers that kernels divide by or loop over without a look: option type to {field: bytes, default, lowest, highest}.
_PADDING, _ACTIVATION = (1, 0, 0, 1), (1, 0, 0, 5)
_STEP, _DILATION, _FACTOR = (4, 0, 1, 1 << 15), (4, 1, 1, 1 << 15), (4, 0, 0, 1 << 15)
OPTION_NUMBERS = {
    1: {0: _PADDING, 1: _STEP, 2: _STEP, 3: _ACTIVATION, 4: _DILATION, 5: _DILATION},  # Conv2D
    2: {0: _PADDING, 1: _STEP, 2: _STEP, 3: _FACTOR, 4: _ACTIVATION, 5: _DILATION, 6: _DILATION},  # DepthwiseConv2D
    5: {0: _PADDING, 1: _STEP, 2: _STEP, 3: _STEP, 4: _STEP, 5: _ACTIVATION},  # Pool2D
    19: {0: _STEP},  # SpaceToDepth
    35: {0: _STEP},  # Split
    49: {0: _PADDING, 1: _STEP, 2: _STEP, 3: _ACTIVATION},  # TransposeConv
    79: {0: _STEP},  # SplitV
    94: {0: _STEP},  # DepthToSpace
}

# CONV_2D, DEPTHWISE_CONV_2D, FULLY_CONNECTED scale each output channel by input scale * weight scale / output scale.
# XNNPACK takes this factor from 2^-32 to 256 (its qs8 operators' `create` functions), and LiteRT 2.3 frees memory twice on others.
RESCALING = frozenset({3, 4, 9})
RESCALE_RANGE = (2.0**-32, 256.0)
