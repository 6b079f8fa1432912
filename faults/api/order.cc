#include "faults/api/order.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>

#include "base/fd.h"

namespace holdfast::faults {
namespace {
constexpr Action kActions[] = {Action::kRestart, Action::kStop, Action::kFill, Action::kCut};
constexpr size_t kOrderBytesMax = 16 << 20;
// The last entry. A file without it is torn.
constexpr std::string_view kEnd = "end=1";

void Put(std::string& out, std::string_view key, std::string_view value) {
  out += fmt::format("{}={}", key, value);
  out += '\0';
}
template <typename Number>
void PutNumber(std::string& out, std::string_view key, Number number) {
  Put(out, key, std::to_string(number));
}
void PutAll(std::string& out, std::string_view key, const std::vector<std::string>& values) {
  for (const std::string& value : values) Put(out, key, value);
}

template <typename Number>
bool ReadNumber(const std::string& text, Number* number) {
  const char* end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, *number);
  return read.ec == std::errc() && read.ptr == end;
}

bool ReadAction(const std::string& value, Action* action) {
  for (const Action known : kActions) {
    if (value != NameOf(known)) continue;
    *action = known;
    return true;
  }
  return false;
}

bool TakeLaunch(const std::string& key, const std::string& value, Launch* launch) {
  if (key == "program")
    launch->program = value;
  else if (key == "folder")
    launch->folder = value;
  else if (key == "argument")
    launch->arguments.push_back(value);
  else if (key == "environment")
    launch->environment.push_back(value);
  else if (key == "limit")
    launch->limits.push_back(value);
  else if (key == "out")
    launch->out = value;
  else if (key == "errors")
    launch->errors = value;
  else if (key == "uid")
    return ReadNumber(value, &launch->uid);
  else if (key == "gid")
    return ReadNumber(value, &launch->gid);
  else if (key == "umask")
    return ReadNumber(value, &launch->umask);
  else
    return false;
  return true;
}

bool TakeText(const std::string& key, const std::string& value, Order* order) {
  if (key == "endpoint")
    order->endpoint = value;
  else if (key == "node_run_dir")
    order->node_run_dir = value;
  else if (key == "lost_folder")
    order->lost_folder = value;
  else if (key == "lost_as")
    order->lost_as = value;
  else if (key == "file")
    order->files.push_back(value);
  else if (key == "drill")
    order->cut.drill = value;
  else if (key == "address")
    order->cut.addresses.push_back(value);
  else
    return TakeLaunch(key, value, &order->launch);
  return true;
}

bool Take(const std::string& key, const std::string& value, Order* order) {
  if (key == "action") return ReadAction(value, &order->action);
  if (key == "start_in_ms") return ReadNumber(value, &order->start_in_ms);
  if (key == "duration_ms") return ReadNumber(value, &order->duration_ms);
  if (key == "pid") return ReadNumber(value, &order->process.pid);
  if (key == "start_ticks") return ReadNumber(value, &order->process.start_ticks);
  if (key == "bytes_per_s") return ReadNumber(value, &order->cut.bytes_per_s);
  if (key == "starts_again") {
    order->starts_again = value == "1";
    return value == "0" || value == "1";
  }
  if (key == "stopped_percent") {
    return ReadNumber(value, &order->stopped_percent) && order->stopped_percent <= 100;
  }
  return TakeText(key, value, order);
}
}  // namespace

std::string NameOf(Action action) {
  constexpr const char* kNames[] = {"restart", "stop", "fill", "cut"};
  return kNames[static_cast<size_t>(action)];
}

std::string EncodeOrder(const Order& order) {
  std::string out;
  Put(out, "action", NameOf(order.action));
  PutNumber(out, "start_in_ms", order.start_in_ms);
  PutNumber(out, "duration_ms", order.duration_ms);
  PutNumber(out, "pid", order.process.pid);
  PutNumber(out, "start_ticks", order.process.start_ticks);
  PutNumber(out, "starts_again", order.starts_again ? 1 : 0);
  PutNumber(out, "stopped_percent", order.stopped_percent);
  Put(out, "endpoint", order.endpoint);
  Put(out, "node_run_dir", order.node_run_dir);
  Put(out, "lost_folder", order.lost_folder);
  Put(out, "lost_as", order.lost_as);
  PutAll(out, "file", order.files);
  Put(out, "drill", order.cut.drill);
  PutNumber(out, "bytes_per_s", order.cut.bytes_per_s);
  PutAll(out, "address", order.cut.addresses);
  const Launch& launch = order.launch;
  Put(out, "program", launch.program);
  Put(out, "folder", launch.folder);
  PutAll(out, "argument", launch.arguments);
  PutAll(out, "environment", launch.environment);
  PutNumber(out, "uid", launch.uid);
  PutNumber(out, "gid", launch.gid);
  PutNumber(out, "umask", launch.umask);
  PutAll(out, "limit", launch.limits);
  Put(out, "out", launch.out);
  Put(out, "errors", launch.errors);
  out += kEnd;
  out += '\0';
  return out;
}

Result<Order> DecodeOrder(std::string_view bytes) {
  Order order;
  bool ended = false;
  while (!bytes.empty()) {
    const size_t end = bytes.find('\0');
    const std::string_view entry = bytes.substr(0, end);
    const size_t equals = entry.find('=');
    if (ended || end == std::string_view::npos) break;
    bytes.remove_prefix(end + 1);
    ended = entry == kEnd;
    if (ended) continue;
    if (equals == std::string_view::npos || !Take(std::string(entry.substr(0, equals)),
                                                  std::string(entry.substr(equals + 1)), &order)) {
      return Fail(InvalidArgumentError(
          fmt::format("an order has the invalid entry '{}'", entry.substr(0, 64))));
    }
  }
  if (ended && bytes.empty()) return order;
  return Fail(InvalidArgumentError("an order is torn or has bytes after its end"));
}

Result<Order> ReadOrder(int fd) {
  std::string bytes;
  char piece[4096];
  for (;;) {
    const ssize_t got = ::pread(fd, piece, sizeof(piece), static_cast<off_t>(bytes.size()));
    if (got < 0) return Fail(ErrnoStatus(errno, "read an order"));
    if (got == 0) return DecodeOrder(bytes);
    bytes.append(piece, static_cast<size_t>(got));
    if (bytes.size() > kOrderBytesMax) return Fail(InvalidArgumentError("an order is too long"));
  }
}

Status WriteOrder(const std::string& path, const Order& order) {
  // The name has no action, so no other function reads the file as an order.
  const std::string temporary = path + ".tmp";
  {
    ::unlink(temporary.c_str());
    const UniqueFd file(
        ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!file.valid()) return ErrnoStatus(errno, "create " + temporary);
    const std::string bytes = EncodeOrder(order);
    if (::write(file.get(), bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) {
      return ErrnoStatus(errno, "write " + temporary);
    }
  }
  const bool made = ::link(temporary.c_str(), path.c_str()) == 0;
  const int error = errno;
  ::unlink(temporary.c_str());
  return made ? Status::Ok() : ErrnoStatus(error, "create " + path);
}

Status LockOrder(int fd) {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  if (::fcntl(fd, F_SETLK, &lock) == 0) return Status::Ok();
  if (errno == EAGAIN || errno == EACCES) {
    return AlreadyExistsError("another process carries out this order");
  }
  return ErrnoStatus(errno, "lock an order");
}

ProcessName HolderOf(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  for (ProcessName holder; file.valid();) {
    struct flock lock {};
    lock.l_type = F_WRLCK;
    if (::fcntl(file.get(), F_GETLK, &lock) != 0 || lock.l_type == F_UNLCK) break;
    // The same process had the lock before and after its start time was read.
    if (holder.pid == lock.l_pid && holder.start_ticks != 0) return holder;
    holder = NameProcess(lock.l_pid);
    if (holder.start_ticks == 0) break;
  }
  return {};
}

}  // namespace holdfast::faults
