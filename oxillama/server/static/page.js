// The page: conversations live in the browser's storage, answers come from /v1/chat/completions.

const by = (id) => document.getElementById(id);
// an empty one is not sent: the model's own default, which /props tells, applies
const KNOBS = [
  ["temperature", "Temperature", 0, 100, 0.05],
  ["top_k", "Top k", 0, 100000, 1],
  ["top_p", "Top p", 0, 1, 0.01],
  ["min_p", "Min p", 0, 1, 0.01],
  ["repeat_penalty", "Repetition penalty", 0.01, 100, 0.01],
  ["presence_penalty", "Presence penalty", -2, 2, 0.1],
  ["frequency_penalty", "Frequency penalty", -2, 2, 0.1],
  ["max_tokens", "Most tokens", 1, 1000000, 1],
  ["seed", "Seed", 0, 9007199254740991, 1],
];
const SCHEMA = {
  type: "object",
  properties: { answer: { type: "string", maxLength: 60 }, sure: { type: "boolean" } },
  required: ["answer", "sure"],
  additionalProperties: false,
};

const STORED = 1 << 20; // characters of a file that the browser stores, of the few millions it has
const FILES = { image: "Image", audio: "Audio" };

// Settings are stored under one name and each conversation under its own, so that a tab writes what
// it changed and nothing else; which conversation is shown is each tab's own.
const NAME = "oxillama", OF = `${NAME}/`;
const stored = load();
let running = null; // the request that streams: { controller, conversation, message, box }
let props = { modalities: {}, default_generation_settings: { n_ctx: 0 }, sessions: false };
let attached = {}; // by kind, the promise of a file: { name, url }

function read(name) {
  try { return JSON.parse(localStorage.getItem(name)); } catch { return null; }
}

function names() {
  try { return Object.keys(localStorage); } catch { return []; }
}

function load() {
  const found = { settings: read(NAME) ?? {}, current: null };
  found.conversations = names().filter((name) => name.startsWith(OF)).map(read)
    .filter((each) => each?.id && Array.isArray(each.messages));
  if (!found.conversations.length) found.conversations.push(fresh());
  sort(found);
  try { found.current = sessionStorage.getItem(NAME); } catch { found.current = null; }
  if (!found.conversations.some((each) => each.id === found.current)) {
    found.current = found.conversations[0].id;
  }
  return found;
}

// ids begin with the time: the newest comes first
function sort(found) {
  found.conversations.sort((a, b) => (a.id < b.id ? 1 : a.id > b.id ? -1 : 0));
}

function fresh() {
  return { id: `${Date.now()}-${Math.random().toString(36).slice(2, 8)}`, title: "New conversation",
           system: "", messages: [], session: null, used: 0 };
}

function write(name, value) {
  try { localStorage.setItem(name, JSON.stringify(value)); }
  catch { if (by("error").hidden) say("The browser's storage is full: delete a conversation.", true); }
}

function keep(conversation = current()) {
  if (!stored.conversations.includes(conversation)) return; // deleted meanwhile
  // tokens with their alternatives and large files stay in memory
  const small = (file) => (file?.url?.length > STORED ? { name: file.name } : file);
  write(OF + conversation.id, { ...conversation, messages: conversation.messages.map(
    ({ tokens, image: shown, audio: heard, ...rest }) => ({
      ...rest, image: small(shown), audio: small(heard) })) });
}

const keepSettings = () => write(NAME, stored.settings);

function drop(id) {
  stored.conversations = stored.conversations.filter((each) => each.id !== id);
  if (!stored.conversations.length) stored.conversations.push(fresh());
  if (!current()) choose(stored.conversations[0].id);
}

function choose(id) {
  stored.current = id;
  try { sessionStorage.setItem(NAME, id); } catch { /* this tab begins with the newest one, then */ }
}

const current = () => stored.conversations.find((c) => c.id === stored.current);

async function ask(path, options = {}) {
  const answer = await fetch(path, options);
  const body = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(body.error?.message || `${path}: status ${answer.status}`);
  return body;
}

const post = (path, body) => ask(path, {
  method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });

function say(text, bad = false) {
  by("error").hidden = !bad;
  if (bad) by("error").textContent = text;
  else by("state").textContent = text;
}

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key === "text") made.textContent = value;
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value !== null) made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

// ---- the list of conversations

function drawList() {
  by("conversations").replaceChildren(...stored.conversations.map((c) =>
    element("li", { "aria-current": c.id === stored.current ? "true" : null },
      element("button", { text: c.title, onclick: () => open(c.id) }),
      element("button", { text: "×", "aria-label": `Delete ${c.title}`, title: "Delete",
                          onclick: () => remove(c.id) }))));
}

function open(id) {
  stop();
  choose(id);
  draw();
  by("list").classList.remove("open");
  by("message").focus();
}

function remove(id) {
  stop();
  try { localStorage.removeItem(OF + id); } catch { /* it was not stored */ }
  drop(id);
  draw();
}

// what another tab did; a conversation that is being answered here is this tab's
addEventListener("storage", ({ key, newValue }) => {
  if (key === NAME) {
    stored.settings = read(NAME) ?? {};
    drawSettings();
  }
  if (!key?.startsWith(OF)) return;
  const id = key.slice(OF.length), made = JSON.parse(newValue), shown = id === stored.current;
  if (running?.conversation.id === id) return;
  if (!made) drop(id);
  else {
    stored.conversations = [made, ...stored.conversations.filter((each) => each.id !== id)];
    sort(stored);
  }
  if (shown) draw();
  else drawList();
});

// ---- the conversation

function draw() {
  const conversation = current();
  by("system").value = conversation.system;
  by("session-name").value = conversation.session || "";
  by("log").replaceChildren(...conversation.messages.map((message, index) =>
    message === running?.message ? running.box : drawMessage(message, index)));
  drawList();
  drawContext();
  by("log").scrollTop = by("log").scrollHeight;
}

function drawMessage(message, index) {
  const who = message.role === "user" ? "You" : "Model";
  const head = element("h3", {}, element("span", { text: who }));
  const content = element("div", { class: "content" });
  const box = element("article", { class: `message ${message.role}`, "aria-label": who }, head);
  if (message.reasoning) {
    const inner = element("div", { text: message.reasoning });
    box.append(element("details", {}, element("summary", { text: "Reasoning" }), inner));
  }
  for (const [kind, label] of Object.entries(FILES)) {
    const file = message[kind];
    if (!file) continue;
    box.append(element("p", { class: "attached" },
      `${label}: ${file.name}${file.url ? "" : " (too large to be stored)"}`,
      element("button", { text: "×", "aria-label": `Remove ${file.name}`, title: "Remove",
                          onclick: () => detach(message, kind) })));
  }
  box.append(content);
  if (message.role === "user") {
    head.append(element("button", { text: "Edit", onclick: () => edit(index, box) }));
    content.textContent = message.content;
  } else {
    head.append(element("button", { text: "Retry", onclick: () => retry(index) }));
    fill(content, message);
  }
  return box;
}

function fill(content, message) {
  if (!message.tokens?.length) { content.textContent = message.content; return; }
  content.tabIndex = 0;
  content.setAttribute("role", "group");
  content.setAttribute("aria-label", "Answer; the arrow keys walk through its tokens");
  content.replaceChildren();
  const decoder = new TextDecoder();
  for (const token of message.tokens) appendToken(content, token, decoder);
}

function appendToken(content, token, decoder) {
  const text = decoder.decode(new Uint8Array(token.bytes), { stream: true });
  const span = element("span", { text });
  span.entry = token;
  if (token.logprob < Math.log(0.5)) span.className = "unsure";
  content.append(span);
}

function edit(index, box) {
  const conversation = current();
  const field = element("textarea", { rows: 4, "aria-label": "Edited message" });
  field.value = conversation.messages[index].content;
  const send = () => {
    stop();
    const { image: shown, audio: heard } = conversation.messages[index];
    conversation.messages = conversation.messages.slice(0, index);
    submit(field.value, { image: shown, audio: heard });
  };
  box.querySelector(".content").replaceChildren(field,
    element("div", { class: "row" },
      element("button", { text: "Send again", onclick: send }),
      element("button", { text: "Cancel", onclick: draw })));
  field.focus();
}

function detach(message, kind) {
  delete message[kind];
  by("error").hidden = true;
  keep();
  draw();
}

function retry(index) {
  stop();
  const conversation = current();
  conversation.messages = conversation.messages.slice(0, index);
  keep();
  draw();
  answer();
}

function submit(text, files) {
  const conversation = current();
  conversation.messages.push({ role: "user", content: text, ...files });
  if (conversation.messages.length === 1) conversation.title = text.slice(0, 40) || "File";
  keep();
  draw();
  answer();
}

// ---- asking

function messagesOf(conversation) {
  const messages = conversation.messages.map(({ role, content, ...more }) => {
    const files = [];
    for (const kind of Object.keys(FILES)) {
      if (!more[kind]) continue;
      const { name, url } = more[kind];
      if (!url) throw new Error(`${name} is no longer here: remove it, and attach it anew`);
      files.push({ type: `${kind}_url`, [`${kind}_url`]: { url } });
    }
    return { role, content: files.length ? [...files, { type: "text", text: content }] : content };
  });
  if (conversation.system.trim()) messages.unshift({ role: "system", content: conversation.system });
  return messages;
}

function schemaOf(text) {
  try { return JSON.parse(text); }
  catch (error) { throw new Error(`The schema is no JSON: ${error.message}`); }
}

function requestOf(conversation) {
  const messages = messagesOf(conversation);
  const body = { model: by("model").value || undefined, messages, stream: true,
                 stream_options: { include_usage: true } };
  for (const [name] of KNOBS) {
    const given = by(`knob-${name}`).value;
    if (given !== "") body[name] = Number(given);
  }
  if (by("probabilities").checked) Object.assign(body, { logprobs: true, top_logprobs: 5 });
  if (by("schema-on").checked) {
    body.response_format = { type: "json_schema", json_schema: {
      name: "answer", strict: true, schema: schemaOf(by("schema").value) } };
  }
  if (conversation.session) body.session = conversation.session;
  return body;
}

async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    rest += value;
    const frames = rest.split("\n\n");
    rest = frames.pop();
    for (const frame of frames) {
      if (!frame.startsWith("data: ")) continue;
      const data = frame.slice(6);
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}

async function answer() {
  const conversation = current();
  say("", false);
  by("error").hidden = true;
  let body;
  try { body = requestOf(conversation); }
  catch (error) { say(error.message, true); return; }
  const controller = new AbortController();
  say("Thinking…");
  const message = { role: "assistant", content: "", reasoning: "", tokens: [] };
  conversation.messages.push(message);
  const box = drawMessage(message, conversation.messages.length - 1);
  const content = box.querySelector(".content");
  by("log").append(box);
  running = { controller, conversation, message, box };
  drawButtons();
  const decoder = new TextDecoder();
  const began = performance.now();
  let first = 0, last = 0, usage = null, count = 0;
  try {
    const response = await fetch("v1/chat/completions", {
      method: "POST", headers: { "content-type": "application/json" },
      body: JSON.stringify(body), signal: controller.signal });
    if (!response.ok) {
      const wrong = await response.json().catch(() => ({}));
      throw new Error(wrong.error?.message || `status ${response.status}`);
    }
    for await (const chunk of eventsOf(response)) {
      if (chunk.error) throw new Error(chunk.error.message);
      if (chunk.usage) usage = chunk.usage;
      const choice = chunk.choices[0];
      if (!choice) continue;
      last = performance.now();
      first ||= last;
      if (choice.delta.reasoning_content) {
        message.reasoning += choice.delta.reasoning_content;
        if (!box.querySelector("details")) {
          content.before(element("details", { open: true },
            element("summary", { text: "Reasoning" }), element("div")));
        }
        box.querySelector("details div").textContent = message.reasoning;
      }
      const entries = choice.logprobs?.content || [];
      if (choice.delta.content) {
        message.content += choice.delta.content;
        if (!entries.length) content.append(choice.delta.content);
      }
      for (const entry of entries) {
        message.tokens.push(entry);
        appendToken(content, entry, decoder);
      }
      if (choice.delta.content || entries.length) {
        count += 1;
        numbers(count, first, last, first - began);
        follow();
      }
      if (choice.finish_reason === "length") say("Cut at the most tokens");
      else if (choice.finish_reason) say("");
    }
  } catch (error) {
    if (error.name !== "AbortError") { say(""); say(error.message, true); }
    else if (!running) say("Stopped"); // and not asked again
  } finally {
    if (running?.controller === controller) running = null;
    drawButtons();
    if (!message.content && !message.reasoning) {
      conversation.messages = conversation.messages.filter((each) => each !== message);
    }
    if (usage) {
      conversation.used = usage.total_tokens;
      numbers(usage.completion_tokens, first, last, first - began);
    }
    keep(conversation);
    if (conversation === current()) draw();
    if (!running) by("message").focus();
  }
}

function drawButtons() {
  by("stop").disabled = !running;
  by("send").disabled = !!running;
}

function follow() {
  const log = by("log");
  if (log.scrollHeight - log.scrollTop - log.clientHeight < 120) log.scrollTop = log.scrollHeight;
}

function numbers(count, first, last, wait) {
  const seconds = (last - first) / 1000;
  const rate = count > 1 && seconds > 0 ? `${((count - 1) / seconds).toFixed(1)} tokens/s` : "";
  by("numbers").textContent = `${count} tokens ${rate ? `· ${rate} ` : ""}· first after ${(wait / 1000).toFixed(2)} s`;
}

function drawContext() {
  const most = props.default_generation_settings.n_ctx || 0, used = current().used || 0;
  by("context").max = most || 1;
  by("context").value = used;
  by("context-text").textContent = most ? `${used} of ${most}` : "";
}

function stop() {
  running?.controller.abort();
  running = null;
}

// ---- tokens

function showToken(span) {
  const box = by("token"), entry = span.entry;
  const row = (token, logprob, taken) => element("tr", { class: taken ? "taken" : null },
    element("td", {}, element("code", { text: JSON.stringify(token).slice(1, -1) })),
    element("td", { text: `${(Math.exp(logprob) * 100).toFixed(1)} %` }));
  const rows = entry.top_logprobs.map((each) =>
    row(each.token, each.logprob, each.token === entry.token));
  if (!entry.top_logprobs.some((each) => each.token === entry.token)) {
    rows.unshift(row(entry.token, entry.logprob, true));
  }
  box.replaceChildren(element("table", {}, element("tbody", {}, ...rows)));
  box.hidden = false;
  const at = span.getBoundingClientRect();
  const top = at.bottom + box.offsetHeight + 6 > innerHeight ? at.top - box.offsetHeight - 4 : at.bottom + 4;
  box.style.top = `${Math.max(2, top)}px`;
  box.style.left = `${Math.max(2, Math.min(at.left, innerWidth - box.offsetWidth - 6))}px`;
}

function walk(content, step) {
  const spans = [...content.querySelectorAll("span")];
  if (!spans.length) return;
  const at = spans.findIndex((each) => each.classList.contains("chosen"));
  const next = Math.max(0, Math.min(spans.length - 1, at < 0 ? 0 : at + step));
  spans.forEach((each, index) => each.classList.toggle("chosen", index === next));
  showToken(spans[next]);
  const entry = spans[next].entry;
  say(`${entry.token}: ${(Math.exp(entry.logprob) * 100).toFixed(1)} percent`);
}

by("log").addEventListener("mouseover", (event) => {
  if (event.target.entry) showToken(event.target);
});
by("log").addEventListener("mouseout", () => { by("token").hidden = true; });
by("log").addEventListener("keydown", (event) => {
  if (!event.target.classList.contains("content")) return;
  if (event.key === "ArrowRight") walk(event.target, 1);
  else if (event.key === "ArrowLeft") walk(event.target, -1);
  else if (event.key === "Escape") by("token").hidden = true;
  else return;
  event.preventDefault();
});

// ---- sessions on the server

async function drawSessions() {
  if (!props.sessions) { by("sessions-part").hidden = true; return; }
  const { data } = await ask("v1/sessions");
  by("sessions").replaceChildren(...data.map((each) => element("li", {},
    element("button", { text: `${each.name} (${each.tokens ?? 0} tokens)`,
                        title: "Restore", onclick: () => restore(each.name) }),
    element("button", { text: "×", "aria-label": `Delete the session ${each.name}`, title: "Delete",
                        onclick: () => forget(each.name) }))));
}

async function save(name) {
  const conversation = current();
  if (conversation.session !== name) {
    if (conversation.session) await post(`v1/sessions/${conversation.session}/fork`, { to: name });
    else {
      const messages = messagesOf(conversation);
      await post(`v1/sessions/${name}`, messages.length ? { messages } : {});
    }
    conversation.session = name;
    keep();
  }
  await post(`v1/sessions/${name}/save`, {});
  say(`Saved ${name}`);
  await drawSessions();
}

// the text and the files of a message, whose content is a text or a list of parts
function partsOf(content) {
  const found = { content: "" };
  for (const part of Array.isArray(content) ? content : [{ type: "text", text: content ?? "" }]) {
    const kind = part.type.replace(/^input_|_url$/, "");
    if (part.type === "text") { found.content += part.text; continue; }
    if (!FILES[kind] || found[kind]) throw new Error(`The session has more than the page shows: ${part.type}`);
    const { url, format, data } = part[part.type];
    found[kind] = { name: "from the session", url: url ?? `data:${kind}/${format};base64,${data}` };
  }
  return found;
}

async function restore(name) {
  stop();
  const found = await post(`v1/sessions/${name}/restore`, {});
  const made = fresh();
  const messages = found.messages || [];
  made.system = messages[0]?.role === "system" ? messages[0].content : "";
  made.messages = messages.filter((each) => each.role !== "system")
    .map(({ role, content, reasoning_content: reasoning }) => ({ role, reasoning, ...partsOf(content) }));
  made.title = name;
  made.session = name;
  made.used = found.tokens;
  const before = stored.conversations.filter((each) => each.session === name);
  stored.conversations.unshift(made);
  choose(made.id);
  for (const each of before) remove(each.id);
  keep();
  draw();
  say(`Restored ${name}`);
}

async function forget(name) {
  await ask(`v1/sessions/${name}`, { method: "DELETE" });
  for (const each of stored.conversations) {
    if (each.session !== name) continue;
    each.session = null;
    keep(each);
  }
  await drawSessions();
}

const guarded = (work) => (...given) => Promise.resolve(work(...given)).catch((error) => say(error.message, true));

// ---- the controls

function drawSettings() {
  const settings = stored.settings;
  by("knobs").replaceChildren(...KNOBS.map(([name, label, min, max, step]) => {
    const input = element("input", { id: `knob-${name}`, type: "number", min, max, step });
    input.value = settings[name] ?? "";
    input.addEventListener("change", () => { settings[name] = input.value; keepSettings(); });
    return element("label", { for: `knob-${name}` }, label, input);
  }));
  by("schema").value = settings.schema ?? JSON.stringify(SCHEMA, null, 2);
  by("schema-on").checked = settings.schemaOn ?? false;
  by("schema").disabled = !by("schema-on").checked;
  by("probabilities").checked = settings.probabilities ?? true;
  by("theme").value = settings.theme ?? "";
  theme();
}

function theme() {
  const wanted = by("theme").value;
  if (wanted) document.documentElement.dataset.theme = wanted;
  else delete document.documentElement.dataset.theme;
}

by("schema").addEventListener("change", () => { stored.settings.schema = by("schema").value; keepSettings(); });
by("schema-on").addEventListener("change", () => {
  stored.settings.schemaOn = by("schema-on").checked;
  by("schema").disabled = !by("schema-on").checked;
  keepSettings();
});
by("probabilities").addEventListener("change", () => {
  stored.settings.probabilities = by("probabilities").checked; keepSettings(); });
by("theme").addEventListener("change", () => { stored.settings.theme = by("theme").value; theme(); keepSettings(); });
by("system").addEventListener("input", () => { current().system = by("system").value; keep(); });
by("new").addEventListener("click", () => {
  const made = fresh();
  stored.conversations.unshift(made);
  open(made.id);
});
for (const [button, part] of [["toggle-list", "list"], ["toggle-settings", "settings"]]) {
  by(button).addEventListener("click", () => {
    const shown = by(part).classList.toggle("open");
    by(button).setAttribute("aria-expanded", String(shown));
  });
}
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  by("token").hidden = true;
  if (running) stop();
});
by("stop").addEventListener("click", stop);
by("message").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    by("send-form").requestSubmit();
  }
});
by("send-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const text = by("message").value, chosen = attached;
  if (running || (!text.trim() && !Object.keys(chosen).length)) return;
  by("message").value = "";
  attached = {};
  for (const kind of Object.keys(FILES)) by(kind).value = "";
  const files = {};
  try { for (const [kind, file] of Object.entries(chosen)) files[kind] = await file; }
  catch (error) { by("message").value ||= text; say(error.message, true); return; }
  submit(text, files);
});
by("save-form").addEventListener("submit", (event) => {
  event.preventDefault();
  guarded(save)(by("session-name").value);
});
const urlOf = (file) => new Promise((done, failed) => {
  const reader = new FileReader();
  reader.addEventListener("load", () => done({ name: file.name, url: reader.result }));
  reader.addEventListener("error", () => failed(new Error(`${file.name}: ${reader.error.message}`)));
  reader.readAsDataURL(file);
});
for (const kind of Object.keys(FILES)) {
  by(kind).addEventListener("change", () => {
    const file = by(kind).files[0];
    delete attached[kind];
    if (!file) return;
    attached[kind] = urlOf(file);
    attached[kind].catch(() => {}); // told when it is sent
  });
}
by("model").addEventListener("change", guarded(async () => { await describe(); }));

async function describe() {
  const name = by("model").value;
  props = await ask(`props${name ? `?model=${encodeURIComponent(name)}` : ""}`);
  by("image-part").hidden = !props.modalities?.vision;
  by("audio-part").hidden = !props.modalities?.audio;
  const defaults = { ...props.default_generation_settings.params, max_tokens: null };
  for (const [key] of KNOBS) by(`knob-${key}`).placeholder = defaults[key] ?? "free";
  drawContext();
}

async function begin() {
  drawSettings();
  draw();
  const { data } = await ask("v1/models");
  by("model").replaceChildren(...data.map((each) => element("option", { value: each.id, text: each.id })));
  await describe();
  await drawSessions();
  say("");
  document.body.dataset.ready = "true";
  by("message").focus();
}

guarded(begin)();
