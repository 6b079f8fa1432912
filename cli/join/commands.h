#pragma once

#include <memory>

#include "cli/core/command.h"

// The commands of this room.

namespace holdfast::cli {

std::unique_ptr<Command> MakeClusterCommand();
std::unique_ptr<Command> MakeTokenCommand();
std::unique_ptr<Command> MakeJoinCommand();
std::unique_ptr<Command> MakeCertificatesCommand();
std::unique_ptr<Command> MakeRevokeCommand();

}  // namespace holdfast::cli
