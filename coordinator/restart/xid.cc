#include "coordinator/restart/xid.h"

#include <algorithm>
#include <array>

namespace holdfast::coord {
namespace {
struct Entry {
  uint32_t xid;
  XidMeaning meaning;
};

/// Xids are classified by the immediate actions of NVIDIA's catalogue: RESTART_BM, RESET_GPU and
/// the workflows for ECC and NVLink are kBroken; RESTART_APP for a hardware error is kContained.
/// See https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html.
constexpr std::array kEntries = std::to_array<Entry>({
    {13, {XidClass::kApplication, "an exception in a kernel, most often an index out of bounds"}},
    {31, {XidClass::kApplication, "a page fault, most often an illegal address of the program"}},
    {43, {XidClass::kApplication, "the program's channel was reset after an error of its own"}},
    {45, {XidClass::kApplication, "the program's work was removed, since it ended or failed"}},
    {46, {XidClass::kBroken, "GPU stopped processing"}},
    {48, {XidClass::kBroken, "double-bit ECC error"}},
    {62, {XidClass::kBroken, "the power management unit halted"}},
    {63, {XidClass::kContained, "a bad memory row will be remapped at the next reset"}},
    {64, {XidClass::kBroken, "a bad memory row could not be remapped"}},
    {74, {XidClass::kBroken, "NVLink error"}},
    {79, {XidClass::kBroken, "GPU has fallen off the bus"}},
    {92, {XidClass::kContained, "very many corrected ECC errors"}},
    {94, {XidClass::kContained, "contained ECC error"}},
    {95, {XidClass::kBroken, "uncontained ECC error"}},
    {109, {XidClass::kBroken, "context switch timeout"}},
    {119, {XidClass::kBroken, "the GPU system processor (GSP) does not answer"}},
    {120, {XidClass::kBroken, "error of the GPU system processor (GSP)"}},
    {136, {XidClass::kBroken, "a link could not be trained"}},
    {140, {XidClass::kBroken, "unrecovered ECC error"}},
});
}  // namespace

XidMeaning MeaningOf(uint32_t xid) {
  const auto* found = std::find_if(kEntries.begin(), kEntries.end(),
                                   [xid](const Entry& entry) { return entry.xid == xid; });
  if (found != kEntries.end()) return found->meaning;
  return {XidClass::kOther, "see NVIDIA's catalogue of Xids"};
}

}  // namespace holdfast::coord
