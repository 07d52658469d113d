/* cuDNN's recurrent networks: the layout of their weights is its own, the sizes of what they work in are estimates. */
#include "emulated.h"

#include <stdlib.h>

/* A vector or matrix of a network's weights, as torch asks for it; of other tensors nothing is kept. */
struct tensor {
    int type, rows, columns;
};
int cudnnCreateTensorDescriptor(struct tensor **made) { return *made = calloc(1, sizeof **made), SUCCESS; }
int cudnnDestroyTensorDescriptor(struct tensor *tensor) { return free(tensor), SUCCESS; }
int cudnnGetTensorNdDescriptor(struct tensor *tensor, int wanted, int *type, int *count, int *sizes, int *strides) {
    const int shape[] = {1, tensor->rows, tensor->columns}, steps[] = {tensor->rows * tensor->columns, tensor->columns, 1};
    *type = tensor->type, *count = 3;
    for (int dimension = 0; dimension < *count && dimension < wanted; dimension++)
        sizes[dimension] = shape[dimension], strides[dimension] = steps[dimension];
    return SUCCESS;
}

struct network {
    int type, gates, directions, layers;
    size_t element, input, hidden, output; /* the width of a direction's output, which a projection makes smaller */
};
int cudnnCreateRNNDescriptor(struct network **made) { return *made = calloc(1, sizeof **made), SUCCESS; }
int cudnnDestroyRNNDescriptor(struct network *network) { return free(network), SUCCESS; }
int cudnnSetRNNDescriptor_v8(struct network *network, int algorithm, int cell, int bias, int directions, int mode, int type,
                             int precision, int math, int input, int hidden, int output, int layers) {
    enum { LSTM = 2, GRU = 3, DOUBLE = 1, HALF = 2, BFLOAT16 = 9 };
    (void)algorithm, (void)bias, (void)mode, (void)precision, (void)math;
    *network = (struct network){
        .type = type, .gates = cell == LSTM ? 4 : cell == GRU ? 3 : 1, .directions = directions + 1, .layers = layers,
        .element = type == DOUBLE ? 8 : type == HALF || type == BFLOAT16 ? 2 : 4,
        .input = input, .hidden = hidden, .output = output,
    };
    return SUCCESS;
}
static size_t fed(const struct network *network, int place) {
    return place < network->directions ? network->input : network->directions * network->output;
}
/* In elements: what one direction of a layer multiplies with, and its two biases for each gate. */
static size_t matrices(const struct network *network, int place) {
    size_t projection = network->output == network->hidden ? 0 : network->output * network->hidden;
    return network->gates * network->hidden * (fed(network, place) + network->output) + projection;
}
static size_t biases(const struct network *network) { return 2 * network->gates * network->hidden; }
int cudnnGetRNNWeightSpaceSize(void *handle, struct network *network, size_t *size) {
    size_t elements = 0;
    (void)handle;
    for (int place = 0; place < network->layers * network->directions; place++)
        elements += matrices(network, place) + biases(network);
    return *size = elements * network->element, SUCCESS;
}
/* All matrices lie before all biases. */
int cudnnGetRNNWeightParams(void *handle, struct network *network, int place, size_t size, char *weights, int which,
                            struct tensor *of_matrix, char **matrix, struct tensor *of_bias, char **bias) {
    size_t before = 0, hidden = network->hidden, width = fed(network, place), vectors = 0;
    int recurrent = which >= network->gates, projects = which == 2 * network->gates;
    (void)handle, (void)size;
    for (int other = 0; other < network->layers * network->directions; other++) {
        if (other < place) before += matrices(network, other);
        vectors += matrices(network, other);
    }
    vectors += place * biases(network) + which * hidden;
    before += recurrent ? network->gates * hidden * width + (which - network->gates) * hidden * network->output
                        : which * hidden * width;
    /* torch asks for one of the two, and leaves the place of the other out. */
    if (of_matrix)
        *of_matrix = projects ? (struct tensor){network->type, network->output, hidden}
                              : (struct tensor){network->type, hidden, recurrent ? network->output : width};
    if (of_bias) *of_bias = (struct tensor){network->type, hidden, 1};
    if (matrix) *matrix = weights + before * network->element;
    if (bias) *bias = projects ? NULL : weights + vectors * network->element;
    return SUCCESS;
}

struct sequences {
    size_t steps, rows;
};
int cudnnCreateRNNDataDescriptor(struct sequences **made) { return *made = calloc(1, sizeof **made), SUCCESS; }
int cudnnDestroyRNNDataDescriptor(struct sequences *sequences) { return free(sequences), SUCCESS; }
int cudnnSetRNNDataDescriptor(struct sequences *sequences, int type, int layout, int steps, int rows) {
    (void)type, (void)layout;
    return *sequences = (struct sequences){steps, rows}, SUCCESS;
}
/* Kept for the backward pass: of each layer its gates, its cell and its output; worked in: the gates of one layer. */
int cudnnGetRNNTempSpaceSizes(void *handle, struct network *network, int trains, struct sequences *input, size_t *work,
                              size_t *kept) {
    size_t step = input->steps * input->rows * network->directions * network->hidden * network->element;
    (void)handle, *work = step * network->gates;
    if (kept) *kept = trains ? step * network->layers * (network->gates + 2) : 0;
    return SUCCESS;
}
/* For dropout between layers: a state of cuRAND, of 48 bytes, for each thread that can run at once. */
int cudnnDropoutGetStatesSize(void *handle, size_t *size) {
    return (void)handle, *size = (size_t)gpu.sms * gpu.threads_per_sm * 48, SUCCESS;
}
