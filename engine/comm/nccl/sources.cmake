# Compiled into the CUDA plug-in, which has libtorch_cuda.so to link against.
set(SLIPWAY_COMM_NCCL_SOURCES "${CMAKE_CURRENT_LIST_DIR}/nccl_backend.cc")
