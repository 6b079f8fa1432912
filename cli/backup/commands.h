#pragma once

#include <memory>

#include "cli/core/command.h"

// The commands of this room.

namespace holdfast::cli {

std::unique_ptr<Command> MakeBackupCommand();

}  // namespace holdfast::cli
