// Included by CUDA text; everything is in cuda_names.h.
#include "cuda_names.h"
