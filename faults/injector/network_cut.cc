#include "faults/injector/network_cut.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netinet/in.h>

#include <array>
#include <cctype>
#include <optional>
#include <set>

namespace holdfast::faults {
namespace {
constexpr int kSshPort = 22;

/// The functions of libnftables that are used here; they have not changed since its first version.
/// The nft command cannot be used: the kernel removes such a filter when the command ends.
struct Nftables {
  void* (*New)(uint32_t flags) = nullptr;
  void (*Free)(void* context) = nullptr;
  int (*Run)(void* context, const char* commands) = nullptr;
  int (*BufferError)(void* context) = nullptr;
  const char* (*Error)(void* context) = nullptr;
  void (*SetDryRun)(void* context, bool dry) = nullptr;
};

template <typename Function>
bool Find(void* library, const char* symbol, Function* into) {
  *into = reinterpret_cast<Function>(::dlsym(library, symbol));
  return *into != nullptr;
}

std::optional<Nftables> LoadNftables() {
  void* library = ::dlopen("libnftables.so.1", RTLD_NOW | RTLD_LOCAL);
  Nftables nft;
  if (library != nullptr && Find(library, "nft_ctx_new", &nft.New) &&
      Find(library, "nft_ctx_free", &nft.Free) &&
      Find(library, "nft_run_cmd_from_buffer", &nft.Run) &&
      Find(library, "nft_ctx_buffer_error", &nft.BufferError) &&
      Find(library, "nft_ctx_get_error_buffer", &nft.Error) &&
      Find(library, "nft_ctx_set_dry_run", &nft.SetDryRun)) {
    return nft;
  }
  return std::nullopt;
}

struct Address {
  bool v6 = false;
  std::array<unsigned char, 16> bytes = {};
};

std::optional<Address> ParseAddress(const std::string& text) {
  Address address;
  if (::inet_pton(AF_INET, text.c_str(), address.bytes.data()) == 1) return address;
  address.v6 = true;
  if (::inet_pton(AF_INET6, text.c_str(), address.bytes.data()) == 1) return address;
  return std::nullopt;
}

/// Returns false for loopback, "any" and multicast addresses.
bool IsOneOtherMachine(const Address& address) {
  const auto& bytes = address.bytes;
  if (!address.v6) return bytes[0] != 0 && bytes[0] != 127 && bytes[0] < 224;
  in6_addr v6{};
  std::copy(bytes.begin(), bytes.end(), v6.s6_addr);
  return !IN6_IS_ADDR_LOOPBACK(&v6) && !IN6_IS_ADDR_UNSPECIFIED(&v6) &&
         !IN6_IS_ADDR_MULTICAST(&v6) && !IN6_IS_ADDR_V4MAPPED(&v6);
}

std::string TableOf(const std::string& drill) {
  std::string name = "holdfast_drill_";
  for (const char c : drill) {
    name += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  }
  return name;
}

/// Returns the definition of a set with the request's addresses of one family.
std::string SetOf(const CutOrder& request, bool v6) {
  std::set<std::string> members;
  for (const std::string& text : request.addresses) {
    const auto address = ParseAddress(text);
    if (!address || address->v6 != v6) continue;
    char number[INET6_ADDRSTRLEN] = {};
    ::inet_ntop(v6 ? AF_INET6 : AF_INET, address->bytes.data(), number, sizeof(number));
    members.insert(number);
  }
  return fmt::format(
      "  set others{0} {{ type ipv{0}_addr; {1} }}\n", v6 ? 6 : 4,
      members.empty() ? "" : fmt::format("elements = {{ {} }};", fmt::join(members, ", ")));
}

/// Returns the chains of one hook. `side` is the packet field with the other machine's address.
std::string ChainsOf(const std::string& hook, const std::string& side, uint64_t bytes_per_s) {
  std::string action = "drop";
  if (bytes_per_s != 0) {
    action = fmt::format("limit rate over {} bytes/second burst {} bytes drop", bytes_per_s,
                         std::min<uint64_t>(bytes_per_s, 1 << 20));
  }
  // One limit for all other machines together: their packets pass the same chain.
  return fmt::format(
      "  chain cut_{0} {{ {1}; }}\n"
      "  chain {0} {{\n"
      "    type filter hook {0} priority 0; policy accept;\n"
      "    tcp dport {2} accept\n"
      "    tcp sport {2} accept\n"
      "    ip {3} @others4 goto cut_{0}\n"
      "    ip6 {3} @others6 goto cut_{0}\n"
      "  }}\n",
      hook, action, kSshPort, side);
}

Status Explain(const std::string& error) {
  if (error.find("Operation not permitted") != std::string::npos) {
    return FailedPreconditionError(
        "holdfast-fault may not change its network: drills of links need CAP_NET_ADMIN "
        "(AmbientCapabilities= in its unit)");
  }
  return FailedPreconditionError(
      "this kernel does not support packet filters that end with their owner "
      "(needs nf_tables of Linux 5.12 or newer): " +
      error);
}
}  // namespace

Status CheckCut(const CutOrder& request) {
  if (request.addresses.empty() || request.addresses.size() > kCutAddressesMax) {
    return InvalidArgumentError(fmt::format("a drill of links needs 1 to {} addresses, not {}",
                                            kCutAddressesMax, request.addresses.size()));
  }
  for (const std::string& text : request.addresses) {
    const auto address = ParseAddress(text);
    if (!address) {
      return InvalidArgumentError(fmt::format("'{}' is not an IP address", text.substr(0, 64)));
    }
    if (!IsOneOtherMachine(*address)) {
      return InvalidArgumentError(fmt::format(
          "{} is not the address of one other machine: a drill would affect this one", text));
    }
  }
  const uint64_t rate = request.bytes_per_s;
  if (rate != 0 && (rate < kCutRateMin || rate > kCutRateMax)) {
    return InvalidArgumentError(
        "the rate of a slow link must be between 64 KiB and 100 GiB per second");
  }
  return Status::Ok();
}

std::string CutRules(const CutOrder& request) {
  return fmt::format("table inet {} {{\n  flags owner;\n{}{}{}{}}}\n", TableOf(request.drill),
                     SetOf(request, false), SetOf(request, true),
                     ChainsOf("input", "saddr", request.bytes_per_s),
                     ChainsOf("output", "daddr", request.bytes_per_s));
}

Status NetworkCut::Rehearse(const CutOrder& request) {
  const auto cut = Apply(request, true);
  return cut ? Status::Ok() : cut.error();
}

Result<NetworkCut> NetworkCut::Apply(const CutOrder& request, bool dry_run) {
  HOLDFAST_RETURN_IF_ERROR(CheckCut(request));
  static const std::optional<Nftables> nft = LoadNftables();
  if (!nft) {
    return Fail(FailedPreconditionError(
        "libnftables.so.1 is not on this node: install the package nftables"));
  }
  Context context(nft->New(0), nft->Free);
  if (context == nullptr) {
    return Fail(FailedPreconditionError("libnftables cannot create a context"));
  }
  nft->BufferError(context.get());
  nft->SetDryRun(context.get(), dry_run);
  if (nft->Run(context.get(), CutRules(request).c_str()) != 0) {
    return Fail(Explain(nft->Error(context.get())));
  }
  return NetworkCut(std::move(context));
}

}  // namespace holdfast::faults
