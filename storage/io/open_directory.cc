#include "base/log.h"
#include "storage/io/block_file.h"
#include "storage/io/fd_directory.h"
#include "storage/io/posix_directory.h"
#include "storage/io/uring_directory.h"

namespace holdfast {
namespace {

Result<std::unique_ptr<Directory>> OpenBest(const std::string& path, const IoOptions& options,
                                            bool read_only) {
  std::string absolute;
  HOLDFAST_ASSIGN_OR_RETURN(UniqueFd root, OpenRoot(path, !read_only, absolute));
  Status reason = UnsupportedError("disabled by the configuration");
  Status refusal;
  if (options.io_uring && options.direct) {
    std::string same;
    HOLDFAST_ASSIGN_OR_RETURN(UniqueFd again, OpenRoot(absolute, false, same));
    auto directory = UringDirectory::Create(std::move(again), absolute, options);
    if (!directory) refusal = directory.error();
    reason = !directory ? refusal : read_only ? Status::Ok() : (*directory)->Probe();
    if (reason.ok()) return std::unique_ptr<Directory>(*std::move(directory));
  }
  bool wanted = options.io_uring && options.direct;
  Log(wanted ? LogLevel::kWarn : LogLevel::kInfo, "IoFallback",
      {Kv("path", absolute), Kv("to", "posix"), Kv("reason", reason.ToString())});
  return std::make_unique<PosixDirectory>(std::move(root), absolute, std::move(refusal));
}

}  // namespace

Result<std::unique_ptr<Directory>> OpenDirectory(const std::string& path,
                                                 const IoOptions& options) {
  return OpenBest(path, options, false);
}

Result<std::unique_ptr<Directory>> OpenDirectoryReadOnly(const std::string& path,
                                                         const IoOptions& options) {
  return OpenBest(path, options, true);
}

}  // namespace holdfast
