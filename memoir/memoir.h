#pragma once

// The public interface of memoir. Include this, or the headers it names one by one.

#include "memoir/base/error.h"
#include "memoir/base/types.h"
#include "memoir/cache/cache.h"
#include "memoir/cache/kv.h"
#include "memoir/engine/conversation.h"
#include "memoir/engine/finish_reason.h"
#include "memoir/engine/generate.h"
#include "memoir/engine/sampler.h"
#include "memoir/engine/session.h"
#include "memoir/kernels/device.h"
#include "memoir/model/load.h"
#include "memoir/model/model.h"
#include "memoir/text/chat_template.h"
#include "memoir/text/detokenizer.h"
#include "memoir/text/tokenizer.h"
