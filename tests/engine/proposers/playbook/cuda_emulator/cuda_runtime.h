#pragma once
#include "emulator.h"
#include "mma_sync.h"
