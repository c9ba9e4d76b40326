// Records what llama.cpp fills into masks, and its logits, of the tiny models that tests/engine/test_diffusion.py describes: diffusion.json.
//
//     python -c "from tests.engine.test_diffusion import write_models; write_models('FOLDER')"
//     sed -e '/#include "\(diffusion\|common\|log\).h"/d' -e 's/return -entropy;/return entropy;/' LLAMA/examples/diffusion/diffusion.cpp > loop.inc
//     g++ -O2 -o record tests/engine/record_diffusion.cpp -I . -I LLAMA/include -I LLAMA/ggml/include -I LLAMA/examples/diffusion \
//         -L LIBRARIES -lllama -lggml -lggml-base -Wl,-rpath,LIBRARIES
//     ./record FOLDER > tests/engine/diffusion.json
//
// Two things differ from llama.cpp's program. At temperature 0 it draws tokens at random, as if the temperature were 1: here the likeliest is
// taken. By entropy it fills the least certain places first (Dream, whose order that is, the most certain): here its sign is turned.
#include "llama.h"
#include "diffusion.h"
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#define LOG_INF(...)
#define LOG_ERR(...) fprintf(stderr, __VA_ARGS__)

struct common_batch {
    llama_batch batch;
    common_batch(llama_context *) { batch = llama_batch_init(512, 0, 1); }
    ~common_batch() { llama_batch_free(batch); }
    void clear() { batch.n_tokens = 0; }
    void add(llama_token id, int position, int sequence, bool output)
    {
        int at = batch.n_tokens++;
        batch.token[at] = id, batch.pos[at] = position, batch.n_seq_id[at] = 1, batch.seq_id[at][0] = sequence, batch.logits[at] = output;
    }
    llama_batch *get() { return &batch; }
};

static int process(llama_context *context, llama_batch *batch) { return llama_decode(context, *batch); }
#define llama_process(context, type, batch) process(context, batch)

// the likeliest first, with probabilities
static void likeliest(llama_sampler *, llama_token_data_array *found)
{
    std::stable_sort(found->data, found->data + found->size, [](const auto &a, const auto &b) { return a.logit > b.logit; });
    double sum = 0;
    for (size_t i = 0; i < found->size; i++) sum += std::exp((double)found->data[i].logit - found->data[0].logit);
    for (size_t i = 0; i < found->size; i++) found->data[i].p = std::exp((double)found->data[i].logit - found->data[0].logit) / sum;
    found->sorted = true, found->selected = 0;
}
static llama_sampler *greedy(uint32_t)
{
    static llama_sampler_i calls = {};
    calls.apply = likeliest;
    return llama_sampler_init(&calls, nullptr);
}
#define llama_sampler_init_dist greedy
#include "loop.inc"

int main(int, char **arguments)
{
    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    llama_backend_init();
    const std::vector<std::string> orders = {"origin", "entropy", "margin", "random", "confidence"};
    std::vector<llama_token> prompt = {5, 9, 33, 7, 70, 12, 40, 41, 4};
    const int mask = 79, total = 32;
    printf("{\n");
    for (std::string arch : {"dream", "llada", "llada-moe", "rnd1"}) {
        llama_model *model = llama_model_load_from_file((arguments[1] + ("/" + arch) + ".gguf").c_str(), llama_model_default_params());
        llama_context_params how = llama_context_default_params();
        how.n_ctx = how.n_batch = how.n_ubatch = 512;
        how.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
        llama_context *context = llama_init_from_model(model, how);
        llama_set_causal_attn(context, false);
        llama_set_n_threads(context, 1, 1);
        common_batch batch(context);
        std::vector<llama_token> text = prompt;
        text.insert(text.end(), {mask, mask, 11, mask});
        for (size_t i = 0; i < text.size(); i++) batch.add(text[i], i, 0, true);
        if (llama_decode(context, batch.batch)) return 1;
        printf("\"%s\": {\"logits\": [", arch.c_str());
        int words = llama_vocab_n_tokens(llama_model_get_vocab(model));
        for (size_t row = 0; row < text.size(); row += 4) // every fourth
            for (int i = 0; i < words; i++) printf("%s%.7g", row + i ? ", " : "", llama_get_logits_ith(context, row)[i]);
        printf("],\n\"runs\": [");
        bool first = true;
        for (int order = 0; order < 5; order++) {
            for (int blocks = 0; blocks < 2; blocks++) {
                if (blocks && order == DIFFUSION_ALGORITHM_ORIGIN) continue; // leaves masks unfilled
                for (double guidance : {0.0, 1.5}) {
                    diffusion_params p;
                    p.steps = blocks ? 16 : 6;
                    p.mask_token_id = mask, p.seed = 11, p.top_p = 1, p.temperature = 0, p.max_length = total, p.cfg_scale = guidance;
                    p.shift_logits = arch == "dream" || arch == "rnd1";
                    p.algorithm = (diffusion_algorithm)order;
                    p.schedule = blocks ? DIFFUSION_TRANSFER_SCHEDULE_BLOCK_BASED : DIFFUSION_TRANSFER_SCHEDULE_TIMESTEP_BASED;
                    p.eps = blocks ? 0 : 0.001f;
                    p.block_length = blocks ? 8 : 0;
                    std::vector<llama_token> out(total);
                    int made = 0;
                    diffusion_generate(context, prompt.data(), out.data(), prompt.size(), p, made);
                    if (made != total || std::count(out.begin(), out.end(), mask)) return fprintf(stderr, "%s: a mask is left\n", arch.c_str()), 1;
                    printf("%s\n{\"order\": \"%s\", \"blocks\": %s, \"guidance\": %g, \"tokens\": [", first ? "" : ",", orders[order].c_str(),
                           blocks ? "true" : "false", guidance);
                    for (int i = prompt.size(); i < total; i++) printf("%s%d", i > (int)prompt.size() ? ", " : "", out[i]);
                    printf("]}");
                    first = false;
                }
            }
        }
        printf("]}%s\n", arch == "rnd1" ? "" : ",");
        llama_free(context);
        llama_model_free(model);
    }
    printf("}\n");
}
