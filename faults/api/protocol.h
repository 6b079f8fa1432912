#pragma once

#include <cstdint>

// What the drill engine and the fault injectors agree on, in addition to faults.proto.

namespace holdfast::faults {

/// The version of the service. An injector refuses requests of another version.
inline constexpr uint32_t kProtocol = 1;
/// The port at which injectors listen, unless their configuration names another.
inline constexpr uint16_t kInjectorPort = 7079;
/// The name of an injector's socket, in the folder of the socket of its server.
inline constexpr const char* kInjectorSocket = "fault.sock";
/// An injector refuses a request that was sent this long before or after its own time.
inline constexpr int64_t kLateMsMax = 60'000;

}  // namespace holdfast::faults
