// Stands in for the CUDA backend in builds without the toolkit.
namespace coppice {}
