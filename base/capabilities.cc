#include "base/capabilities.h"

#include <linux/capability.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstddef>

namespace holdfast {

bool HasCapability(int capability) {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  std::array<__user_cap_data_struct, 2> data{};
  if (::syscall(SYS_capget, &header, data.data()) != 0) return false;
  const auto index = static_cast<size_t>(CAP_TO_INDEX(capability));
  return (data[index].effective & CAP_TO_MASK(capability)) != 0;
}

}  // namespace holdfast
