/* Conversion of data on the host: order, numbers, colours. */
#include "quantized.h"

#include <math.h>
#include <string.h>

#define MOST_DIMS 8

/* Numbers --------------------------------------------------------------------------------------------------------------------- */

EXPORT int cnrtDataTypeSize(cnrtDataType_t dtype) {
    switch (dtype) {
    case CNRT_INT8:
    case CNRT_UINT8:
    case CNRT_FIX8:
    case CNRT_QUANT8:
    case CNRT_BOOL: return 1;
    case CNRT_FLOAT16:
    case CNRT_INT16:
    case CNRT_UINT16: return 2;
    case CNRT_FLOAT64:
    case CNRT_INT64: return 8;
    default: return 4;
    }
}

static double half_to_double(uint16_t half) {
    uint32_t bits = (uint32_t)(half & 0x7FFF) << 13;
    float value;
    if (bits >= 0x7C00u << 13) bits += 0x70000000; /* infinity, or no number */
    memcpy(&value, &bits, 4);
    if (bits < 0x7C00u << 13) value *= 0x1p112f;
    return half & 0x8000 ? -(double)value : (double)value;
}

/* Nearest, ties to even; beyond the largest, infinity. */
static uint16_t double_to_half(double value) {
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    uint64_t bits;
    value = fabs(value);
    if (isnan(value)) return (uint16_t)(sign | 0x7E00);
    if (value >= 65520) return (uint16_t)(sign | 0x7C00);
    if (value < 0x1p-14) return (uint16_t)(sign | (uint16_t)lrint(value * 0x1p24));
    memcpy(&bits, &value, 8);
    bits += ((1ull << 41) - 1) + (bits >> 42 & 1); /* rounds, and carries into the exponent */
    return (uint16_t)(sign | (uint16_t)((bits >> 42) - (1008u << 10)));
}

EXPORT cnrtRet_t cnrtConvertDoubleToHalf(uint16_t *half, double value) {
    if (!half) return cn_fail(CNRT_RET_ERR_INVALID, "cnrtConvertDoubleToHalf", "a null pointer");
    *half = double_to_half(value);
    return CNRT_RET_SUCCESS;
}

EXPORT cnrtRet_t cnrtConvertFloatToHalf(uint16_t *half, float value) { return cnrtConvertDoubleToHalf(half, (double)value); }

EXPORT cnrtRet_t cnrtConvertHalfToDouble(double *value, uint16_t half) {
    if (!value) return cn_fail(CNRT_RET_ERR_INVALID, "cnrtConvertHalfToDouble", "a null pointer");
    *value = half_to_double(half);
    return CNRT_RET_SUCCESS;
}

EXPORT cnrtRet_t cnrtConvertHalfToFloat(float *value, uint16_t half) {
    if (!value) return cn_fail(CNRT_RET_ERR_INVALID, "cnrtConvertHalfToFloat", "a null pointer");
    *value = (float)half_to_double(half);
    return CNRT_RET_SUCCESS;
}

static double limit(double value, double low, double high) {
    if (isnan(value)) return 0;
    return value < low ? low : value > high ? high : value;
}

static double load(const uint8_t *at, cnrtDataType_t dtype) {
    uint16_t half;
    int16_t word;
    int32_t number;
    int64_t wide;
    float real;
    switch (dtype) {
    case CNRT_FLOAT16: memcpy(&half, at, 2); return half_to_double(half);
    case CNRT_INT8: return (int8_t)*at;
    case CNRT_UINT8: return *at;
    case CNRT_INT16: memcpy(&word, at, 2); return word;
    case CNRT_INT32: memcpy(&number, at, 4); return number;
    case CNRT_INT64: memcpy(&wide, at, 8); return (double)wide;
    default: memcpy(&real, at, 4); return (double)real;
    }
}

/* Integers are rounded to the nearest and kept in their range. */
static void store(uint8_t *at, cnrtDataType_t dtype, double value) {
    uint16_t half;
    int16_t word;
    int32_t number;
    float real;
    switch (dtype) {
    case CNRT_FLOAT16: half = double_to_half(value), memcpy(at, &half, 2); break;
    case CNRT_INT8: *at = (uint8_t)(int8_t)lrint(limit(value, INT8_MIN, INT8_MAX)); break;
    case CNRT_UINT8: *at = (uint8_t)lrint(limit(value, 0, UINT8_MAX)); break;
    case CNRT_INT16: word = (int16_t)lrint(limit(value, INT16_MIN, INT16_MAX)), memcpy(at, &word, 2); break;
    case CNRT_INT32: number = (int32_t)lrint(limit(value, INT32_MIN, INT32_MAX)), memcpy(at, &number, 4); break;
    default: real = (float)value, memcpy(at, &real, 4); break;
    }
}

static int among(cnrtDataType_t dtype, const cnrtDataType_t *list, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (list[i] == dtype) return 1;
    return 0;
}
#define AMONG(dtype, ...) among(dtype, (const cnrtDataType_t[]){__VA_ARGS__}, sizeof((const cnrtDataType_t[]){__VA_ARGS__}) / sizeof(cnrtDataType_t))

static int can_cast(cnrtDataType_t from, cnrtDataType_t to, int quantized) {
    if (quantized) {
        if (from == CNRT_FLOAT32) return AMONG(to, CNRT_FLOAT16, CNRT_INT16, CNRT_INT8, CNRT_INT32, CNRT_FLOAT32);
        if (from == CNRT_FLOAT16) return to == CNRT_INT16;
        return AMONG(from, CNRT_INT32, CNRT_INT16, CNRT_INT8) && to == CNRT_FLOAT32;
    }
    if (from == CNRT_FLOAT32) return AMONG(to, CNRT_FLOAT16, CNRT_UINT8, CNRT_FLOAT32);
    if (from == CNRT_INT64) return to == CNRT_FLOAT16;
    if (from == CNRT_FLOAT16) return AMONG(to, CNRT_FLOAT32, CNRT_UINT8);
    return from == CNRT_UINT8 && AMONG(to, CNRT_FLOAT32, CNRT_FLOAT16);
}

static int is_integer(cnrtDataType_t dtype) { return AMONG(dtype, CNRT_INT8, CNRT_INT16, CNRT_INT32); }

/* One number, `index` of the destination. */
static double quantize(const struct quantized *by, size_t index, double value, cnrtDataType_t from, cnrtDataType_t to) {
    if (!by || (!is_integer(from) && !is_integer(to))) return value;
    const struct quantized_channel *channel = &by->channels[index / by->inner % by->count];
    double step = ldexp(1, channel->position), scale = (double)channel->scale, offset = (double)channel->offset;
    return is_integer(to) ? value * scale / step + offset : (value - offset) * step / scale;
}

/* Order ----------------------------------------------------------------------------------------------------------------------- */

/* A walk over the destination in its order, with the place in the source of each number. */
struct walk {
    int count;
    size_t dims[MOST_DIMS], strides[MOST_DIMS]; /* of the destination's axes; strides in the source, in numbers */
    size_t total;
};

/* 0, or -1: not a permutation, or too large. */
static int plan(struct walk *walk, int count, const int *dims, const int *order) {
    size_t strides[MOST_DIMS], stride = 1;
    unsigned int seen = 0;
    if (!dims || !order || count < 1 || count > MOST_DIMS) return -1;
    for (int i = count - 1; i >= 0; i--) {
        strides[i] = stride;
        if (dims[i] < 1 || __builtin_mul_overflow(stride, (size_t)dims[i], &stride) || stride > SIZE_MAX / 16) return -1;
    }
    for (int i = 0; i < count; i++) {
        if (order[i] < 0 || order[i] >= count || seen & 1u << order[i]) return -1;
        seen |= 1u << order[i];
        walk->dims[i] = (size_t)dims[order[i]];
        walk->strides[i] = strides[order[i]];
    }
    walk->count = count;
    walk->total = stride;
    return 0;
}

/* From the place `at` in the source to that of the next number of the destination. */
static size_t step(const struct walk *walk, size_t at, size_t *place) {
    for (int i = walk->count - 1; i >= 0; i--) {
        at += walk->strides[i];
        if (++place[i] < walk->dims[i]) break;
        at -= walk->strides[i] * walk->dims[i];
        place[i] = 0;
    }
    return at;
}

static int can_move(cnrtDataType_t dtype) {
    return AMONG(dtype, CNRT_FLOAT32, CNRT_FLOAT16, CNRT_INT32, CNRT_INT16, CNRT_INT8, CNRT_UINT16, CNRT_UINT8);
}

/* Like a transposition in NumPy: axis i of the destination is axis order[i] of the source, whose shape `dims` is. */
static cnrtRet_t convert(const char *call, const void *from, cnrtDataType_t from_type, void *to, cnrtDataType_t to_type,
                         cnrtQuantizedParam_t param, const struct walk *walk) {
    if (!from || !to) return cn_fail(CNRT_RET_ERR_INVALID, call, "a null pointer");
    int cast = from_type != to_type || param;
    if (cast ? !can_cast(from_type, to_type, param != NULL) : !can_move(from_type))
        return cn_fail(CNRT_RET_ERR_UNSUPPORTED, call, "no conversion between these types");
    struct quantized *by = param ? cn_get(param, CN_QUANTIZED) : NULL;
    if (param && !by) return cn_fail(CNRT_RET_ERR_INVALID, call, "no such quantisation parameter");
    size_t from_size = (size_t)cnrtDataTypeSize(from_type), to_size = (size_t)cnrtDataTypeSize(to_type);
    size_t place[MOST_DIMS] = {0}, source = 0;
    for (size_t i = 0; i < walk->total; i++, source = step(walk, source, place)) {
        const uint8_t *at = (const uint8_t *)from + source * from_size;
        uint8_t *put = (uint8_t *)to + i * to_size;
        if (cast)
            store(put, to_type, quantize(by, i, load(at, from_type), from_type, to_type));
        else if (to_size == 4)
            memcpy(put, at, 4);
        else if (to_size == 2)
            memcpy(put, at, 2);
        else
            *put = *at;
    }
    if (by) cn_drop(&by->object);
    return CNRT_RET_SUCCESS;
}

EXPORT cnrtRet_t cnrtTransDataOrder(void *from, cnrtDataType_t dtype, void *to, int count, int dims[], int order[]) {
    static const char call[] = "cnrtTransDataOrder";
    struct walk walk;
    if (plan(&walk, count, dims, order)) return cn_fail(CNRT_RET_ERR_INVALID, call, "the shape or the order is wrong");
    return convert(call, from, dtype, to, dtype, NULL, &walk);
}

EXPORT cnrtRet_t cnrtCastDataType(void *from, cnrtDataType_t from_type, void *to, cnrtDataType_t to_type, int number,
                                  cnrtQuantizedParam_t param) {
    static const char call[] = "cnrtCastDataType";
    const int order = 0;
    struct walk walk;
    if (plan(&walk, 1, &number, &order)) return cn_fail(CNRT_RET_ERR_INVALID, call, "no number of elements");
    if (!param && !can_cast(from_type, to_type, 0)) return cn_fail(CNRT_RET_ERR_UNSUPPORTED, call, "no conversion between these types");
    return convert(call, from, from_type, to, to_type, param, &walk);
}

EXPORT cnrtRet_t cnrtTransOrderAndCast(void *from, cnrtDataType_t from_type, void *to, cnrtDataType_t to_type, cnrtQuantizedParam_t param,
                                       int count, int dims[], int order[]) {
    static const char call[] = "cnrtTransOrderAndCast";
    struct walk walk;
    if (plan(&walk, count, dims, order)) return cn_fail(CNRT_RET_ERR_INVALID, call, "the shape or the order is wrong");
    return convert(call, from, from_type, to, to_type, param, &walk);
}

static cnrtRet_t reorder(const char *call, void *to, void *from, cnrtDataType_t dtype, int a, int b, int c, int d, const int *order) {
    int dims[4] = {a, b, c, d};
    struct walk walk;
    if (plan(&walk, 4, dims, order)) return cn_fail(CNRT_RET_ERR_INVALID, call, "a dimension below 1");
    return convert(call, from, dtype, to, dtype, NULL, &walk);
}

static const int to_nhwc[4] = {0, 2, 3, 1}, to_nchw[4] = {0, 3, 1, 2};

EXPORT cnrtRet_t cnrtReshapeNCHWToNHWC(void *to, void *from, int n, int h, int w, int c, cnrtDataType_t dtype) {
    return reorder("cnrtReshapeNCHWToNHWC", to, from, dtype, n, c, h, w, to_nhwc);
}

EXPORT cnrtRet_t cnrtReshapeNHWCToNCHW(void *to, void *from, int n, int h, int w, int c, cnrtDataType_t dtype) {
    return reorder("cnrtReshapeNHWCToNCHW", to, from, dtype, n, h, w, c, to_nchw);
}

/* Filters go the way that data goes to the device: channels last. */
EXPORT cnrtRet_t cnrtFilterReshape(void *to, void *from, int n, int h, int w, int c, cnrtDataType_t dtype) {
    return reorder("cnrtFilterReshape", to, from, dtype, n, c, h, w, to_nhwc);
}

/* Channel i of the destination is channel order[i] of the source. */
EXPORT cnrtRet_t cnrtTransDataColorOrder(void *from, void *to, cnrtDataType_t dtype, cnrtDimOrder_t layout, int dims[], int order[]) {
    static const char call[] = "cnrtTransDataColorOrder";
    if (!from || !to || !dims || !order) return cn_fail(CNRT_RET_ERR_INVALID, call, "a null pointer");
    if ((layout != CNRT_NCHW && layout != CNRT_NHWC) || !can_move(dtype))
        return cn_fail(CNRT_RET_ERR_UNSUPPORTED, call, "not NCHW or NHWC, or not of a type that can be moved");
    for (int i = 0; i < 4; i++)
        if (dims[i] < 1) return cn_fail(CNRT_RET_ERR_INVALID, call, "a dimension below 1");
    int nchw = layout == CNRT_NCHW, channels = nchw ? dims[1] : dims[3];
    size_t pixels = nchw ? (size_t)dims[2] * (size_t)dims[3] : (size_t)dims[1] * (size_t)dims[2], size = (size_t)cnrtDataTypeSize(dtype);
    for (int c = 0; c < channels; c++)
        if (order[c] < 0 || order[c] >= channels) return cn_fail(CNRT_RET_ERR_INVALID, call, "no such channel");
    for (size_t n = 0; n < (size_t)dims[0]; n++)
        for (int c = 0; c < channels; c++)
            for (size_t p = 0; p < pixels; p++) {
                size_t base = n * (size_t)channels * pixels;
                size_t put = base + (nchw ? (size_t)c * pixels + p : p * (size_t)channels + (size_t)c);
                size_t get = base + (nchw ? (size_t)order[c] * pixels + p : p * (size_t)channels + (size_t)order[c]);
                memcpy((uint8_t *)to + put * size, (const uint8_t *)from + get * size, size);
            }
    return CNRT_RET_SUCCESS;
}

/* Copy an array into a larger one, `strides[i]` long along axis i; what is between stays as it is. */
EXPORT cnrtRet_t cnrtAddDataStride(void *from, cnrtDataType_t dtype, void *to, int count, int *dims, int *strides) {
    static const char call[] = "cnrtAddDataStride";
    if (!from || !to || !dims || !strides) return cn_fail(CNRT_RET_ERR_INVALID, call, "a null pointer");
    if (count < 1 || count > MOST_DIMS) return cn_fail(CNRT_RET_ERR_INVALID, call, "not 1 to 8 dimensions");
    size_t total = 1, size = (size_t)cnrtDataTypeSize(dtype);
    for (int i = 0; i < count; i++) {
        if (dims[i] < 1 || strides[i] < dims[i]) return cn_fail(CNRT_RET_ERR_INVALID, call, "a stride below its dimension");
        total *= (size_t)dims[i];
    }
    for (size_t index = 0; index < total; index++) {
        size_t rest = index, at = 0, step = 1;
        for (int i = count - 1; i >= 0; i--) {
            at += rest % (size_t)dims[i] * step;
            rest /= (size_t)dims[i];
            step *= (size_t)strides[i];
        }
        memcpy((uint8_t *)to + at * size, (const uint8_t *)from + index * size, size);
    }
    return CNRT_RET_SUCCESS;
}
