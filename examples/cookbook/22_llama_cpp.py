"""Run a program that was written for llama-cpp-python

Change the import. What is not offered here raises an error with its name.
"""

import oxillama
from oxillama.compat.llama_cpp import Llama

llm = Llama(model_path=str(oxillama.embedded_path()), n_ctx=512, verbose=False)
done = llm("Once upon a time", max_tokens=12, temperature=0, stop=["\n"])
print(done["choices"][0]["text"], done["usage"])
llm.close()
