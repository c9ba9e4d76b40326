"""The types of messages, tools and results that programs import from llama_cpp by name: they say no
more here than that these are dictionaries.
"""

from __future__ import annotations

from typing import Any, TypeAlias

Object: TypeAlias = dict[str, Any]

ChatCompletion: TypeAlias = Object
ChatCompletionChoice: TypeAlias = Object
ChatCompletionChunk: TypeAlias = Object
ChatCompletionChunkChoice: TypeAlias = Object
ChatCompletionChunkDelta: TypeAlias = Object
ChatCompletionChunkDeltaEmpty: TypeAlias = Object
ChatCompletionFunction: TypeAlias = Object
ChatCompletionFunctionCall: TypeAlias = Object
ChatCompletionFunctionCallOption: TypeAlias = Object
ChatCompletionFunctionParameters: TypeAlias = Object
ChatCompletionFunctions: TypeAlias = Object
ChatCompletionLogprobToken: TypeAlias = Object
ChatCompletionLogprobs: TypeAlias = Object
ChatCompletionMessage: TypeAlias = Object
ChatCompletionMessageToolCall: TypeAlias = Object
ChatCompletionMessageToolCallChunk: TypeAlias = Object
ChatCompletionMessageToolCallChunkFunction: TypeAlias = Object
ChatCompletionMessageToolCallFunction: TypeAlias = Object
ChatCompletionMessageToolCalls: TypeAlias = list[Object]
ChatCompletionNamedToolChoice: TypeAlias = Object
ChatCompletionNamedToolChoiceFunction: TypeAlias = Object
ChatCompletionRequestAssistantMessage: TypeAlias = Object
ChatCompletionRequestAssistantMessageFunctionCall: TypeAlias = Object
ChatCompletionRequestFunctionCall: TypeAlias = str | Object
ChatCompletionRequestFunctionCallOption: TypeAlias = Object
ChatCompletionRequestFunctionMessage: TypeAlias = Object
ChatCompletionRequestMessage: TypeAlias = Object
ChatCompletionRequestMessageContentPart: TypeAlias = Object
ChatCompletionRequestMessageContentPartImage: TypeAlias = Object
ChatCompletionRequestMessageContentPartImageImageUrl: TypeAlias = Object
ChatCompletionRequestMessageContentPartText: TypeAlias = Object
ChatCompletionRequestResponseFormat: TypeAlias = Object
ChatCompletionRequestSystemMessage: TypeAlias = Object
ChatCompletionRequestToolMessage: TypeAlias = Object
ChatCompletionRequestUserMessage: TypeAlias = Object
ChatCompletionResponseChoice: TypeAlias = Object
ChatCompletionResponseFunction: TypeAlias = Object
ChatCompletionResponseFunctionCall: TypeAlias = Object
ChatCompletionResponseMessage: TypeAlias = Object
ChatCompletionStreamResponse: TypeAlias = Object
ChatCompletionStreamResponseChoice: TypeAlias = Object
ChatCompletionStreamResponseDelta: TypeAlias = Object
ChatCompletionStreamResponseDeltaEmpty: TypeAlias = Object
ChatCompletionStreamResponseDeltaFunctionCall: TypeAlias = Object
ChatCompletionTool: TypeAlias = Object
ChatCompletionToolChoiceOption: TypeAlias = str | Object
ChatCompletionToolFunction: TypeAlias = Object
ChatCompletionTopLogprobToken: TypeAlias = Object
Completion: TypeAlias = Object
CompletionChoice: TypeAlias = Object
CompletionChunk: TypeAlias = Object
CompletionLogprobs: TypeAlias = Object
CompletionUsage: TypeAlias = Object
CreateChatCompletionResponse: TypeAlias = Object
CreateChatCompletionStreamResponse: TypeAlias = Object
CreateCompletionResponse: TypeAlias = Object
CreateCompletionStreamResponse: TypeAlias = Object
CreateEmbeddingResponse: TypeAlias = Object
Embedding: TypeAlias = Object
EmbeddingData: TypeAlias = Object
EmbeddingUsage: TypeAlias = Object

__all__ = [
    name for name in globals() if name.startswith(("Chat", "Completion", "Create", "Embedding"))
]
