#include "backend/cuda/cublas_lt.h"

#include <dlfcn.h>

#include <array>

#include "base/error.h"

namespace coppice {

namespace {

// The number of tokens an algorithm is chosen for.
constexpr std::int64_t kPlannedTokens = 2048;
constexpr int kCandidates = 16;

void check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw Error(ErrorKind::kUnavailable, std::string("cuBLASLt: ") + what + ": status " +
                                             std::to_string(static_cast<int>(status)));
}

}  // namespace

// Entry points of the library, which stays loaded.
struct CublasLt::Functions {
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtDestroy) destroy;
  decltype(&cublasLtGetVersion) get_version;
  decltype(&cublasLtMatmul) matmul;
  decltype(&cublasLtMatmulDescInit_internal) init_operation;
  decltype(&cublasLtMatmulDescSetAttribute) set_operation;
  decltype(&cublasLtMatrixLayoutInit_internal) init_layout;
  decltype(&cublasLtMatrixLayoutSetAttribute) set_layout;
  decltype(&cublasLtMatmulPreferenceInit_internal) init_preference;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference;
  decltype(&cublasLtMatmulAlgoGetHeuristic) get_heuristic;
  decltype(&cublasLtMatmulAlgoConfigGetAttribute) get_config;
};

struct CublasLt::Plan {
  bool found = false;
  cublasLtMatmulAlgo_t algorithm = {};
};

namespace {

// One product as cuBLASLt sees it, in column-major order: out^T = weight^T^T x^T.
struct Problem {
  cublasLtMatmulDescOpaque_t operation = {};
  cublasLtMatrixLayoutOpaque_t weight = {}, x = {}, out = {};
};

template <typename Functions>
Problem describe(const Functions& f, const LtProduct& p) {
  Problem problem;
  check(f.init_operation(&problem.operation, sizeof(problem.operation), CUBLAS_COMPUTE_32F,
                         CUDA_R_32F),
        "operation");
  const cublasOperation_t transposed = CUBLAS_OP_T;
  check(f.set_operation(&problem.operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                        sizeof(transposed)),
        "operation");
  const auto layout = [&](cublasLtMatrixLayoutOpaque_t& to, cudaDataType type, std::int64_t rows,
                          std::int64_t columns, std::int64_t stride, std::int64_t head_stride) {
    check(f.init_layout(&to, sizeof(to), type, static_cast<std::uint64_t>(rows),
                        static_cast<std::uint64_t>(columns), stride),
          "layout");
    if (p.heads == 1) return;
    const auto heads = static_cast<std::int32_t>(p.heads);
    check(f.set_layout(&to, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &heads, sizeof(heads)), "layout");
    check(f.set_layout(&to, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &head_stride,
                       sizeof(head_stride)),
          "layout");
  };
  layout(problem.weight, CUDA_R_16BF, p.inputs, p.outputs, p.inputs, p.outputs * p.inputs);
  layout(problem.x, CUDA_R_16BF, p.inputs, p.tokens, p.x_stride, p.inputs);
  layout(problem.out, p.out_is_f32 ? CUDA_R_32F : CUDA_R_16BF, p.outputs, p.tokens, p.out_stride,
         p.outputs);
  return problem;
}

}  // namespace

CublasLt::CublasLt(std::unique_ptr<const Functions> functions, cublasLtHandle_t handle)
    : functions_(std::move(functions)), handle_(handle), version_(functions_->get_version()) {}

CublasLt::~CublasLt() {
  functions_->destroy(handle_);
}

std::unique_ptr<CublasLt> CublasLt::load() {
  const std::string name = "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR);
  void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return nullptr;
  bool complete = true;
  const auto entry = [&](auto& function, const char* symbol) {
    function =
        reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, symbol));
    complete = complete && function != nullptr;
  };
  auto f = std::make_unique<Functions>();
  entry(f->create, "cublasLtCreate");
  entry(f->destroy, "cublasLtDestroy");
  entry(f->get_version, "cublasLtGetVersion");
  entry(f->matmul, "cublasLtMatmul");
  entry(f->init_operation, "cublasLtMatmulDescInit_internal");
  entry(f->set_operation, "cublasLtMatmulDescSetAttribute");
  entry(f->init_layout, "cublasLtMatrixLayoutInit_internal");
  entry(f->set_layout, "cublasLtMatrixLayoutSetAttribute");
  entry(f->init_preference, "cublasLtMatmulPreferenceInit_internal");
  entry(f->set_preference, "cublasLtMatmulPreferenceSetAttribute");
  entry(f->get_heuristic, "cublasLtMatmulAlgoGetHeuristic");
  entry(f->get_config, "cublasLtMatmulAlgoConfigGetAttribute");
  if (!complete) return nullptr;
  cublasLtHandle_t handle = nullptr;
  check(f->create(&handle), "create");
  return std::unique_ptr<CublasLt>(new CublasLt(std::move(f), handle));
}

// The heuristic's first choice for the planned number of tokens that keeps each sum in one piece.
const CublasLt::Plan& CublasLt::plan(const LtProduct& product) {
  auto& slot = plans_[shape_of(product)];
  if (slot != nullptr) return *slot;
  const Functions& f = *functions_;
  LtProduct planned = product;
  planned.tokens = kPlannedTokens;
  planned.x_stride = product.heads * product.inputs;
  planned.out_stride = product.heads * product.outputs;
  Problem problem = describe(f, planned);
  cublasLtMatmulPreferenceOpaque_t preference = {};
  check(f.init_preference(&preference, sizeof(preference)), "preference");
  const std::uint64_t no_workspace = 0;
  const std::uint32_t no_reduction = CUBLASLT_REDUCTION_SCHEME_NONE, alignment = 16;
  check(f.set_preference(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &no_workspace,
                         sizeof(no_workspace)),
        "preference");
  check(f.set_preference(&preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &no_reduction,
                         sizeof(no_reduction)),
        "preference");
  for (const auto attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    check(f.set_preference(&preference, attribute, &alignment, sizeof(alignment)), "preference");
  std::array<cublasLtMatmulHeuristicResult_t, kCandidates> results = {};
  int count = 0;
  const cublasStatus_t status =
      f.get_heuristic(handle_, &problem.operation, &problem.weight, &problem.x, &problem.out,
                      &problem.out, &preference, kCandidates, results.data(), &count);
  auto made = std::make_unique<Plan>();
  for (int i = 0; status == CUBLAS_STATUS_SUCCESS && i < count && !made->found; ++i) {
    std::int32_t split = 1;
    std::size_t written = 0;
    if (f.get_config(&results[i].algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &split, sizeof(split),
                     &written) != CUBLAS_STATUS_SUCCESS)
      continue;
    if (results[i].state != CUBLAS_STATUS_SUCCESS || split > 1) continue;
    made->found = true;
    made->algorithm = results[i].algo;
  }
  slot = std::move(made);
  return *slot;
}

bool CublasLt::multiply(const LtProduct& product, cudaStream_t stream) {
  if (product.tokens == 0) return true;
  const Plan& chosen = plan(product);
  if (!chosen.found) return false;
  Problem problem = describe(*functions_, product);
  const float one = 1.0f, zero = 0.0f;
  check(functions_->matmul(handle_, &problem.operation, &one, product.weight, &problem.weight,
                           product.x, &problem.x, &zero, product.out, &problem.out, product.out,
                           &problem.out, &chosen.algorithm, nullptr, 0, stream),
        "matmul");
  return true;
}

}  // namespace coppice
