// A conversation with the server's model: messages go to /v1/chat/completions, text comes back as
// server-sent events.

const at = (id) => document.getElementById(id);
let messages = [];
let under_way = null;

const headers = () => ({
  "Content-Type": "application/json",
  ...(at("token").value && { Authorization: `Bearer ${at("token").value}` }),
});

const show = (role, text) => {
  const made = document.createElement("article");
  made.className = role;
  made.textContent = text;
  at("messages").append(made);
  made.scrollIntoView({ block: "end" });
  return made;
};

const explained = async (response) => {
  const body = await response.json().catch(() => null);
  return body?.error?.message ?? `${response.status} ${response.statusText}`;
};

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    held += value;
    const parts = held.split("\n\n");
    held = parts.pop();
    for (const part of parts) {
      const data = part.replace(/^data: /, "");
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}

const asked = () => {
  const system = at("system").value.trim(), temperature = at("temperature").value;
  return JSON.stringify({
    messages: [...(system ? [{ role: "system", content: system }] : []), ...messages],
    ...(temperature === "" ? {} : { temperature: Number(temperature) }),
    max_tokens: Number(at("most").value),
    stream: true,
    stream_options: { include_usage: true },
  });
};

async function answer() {
  under_way = new AbortController();
  at("send").textContent = "Stop";
  const made = show("assistant", "");
  const start = performance.now();
  let text = "", usage = null;
  try {
    const response = await fetch("v1/chat/completions", {
      method: "POST", headers: headers(), body: asked(), signal: under_way.signal,
    });
    if (!response.ok) throw new Error(await explained(response));
    for await (const event of events(response)) {
      if (event.error) throw new Error(event.error.message);
      text += event.choices[0]?.delta?.content ?? "";
      usage = event.usage ?? usage;
      made.textContent = text;
      at("messages").scrollTop = at("messages").scrollHeight;
    }
  } catch (error) {
    if (error.name !== "AbortError") {
      made.className = "error";
      made.textContent = text ? `${text}\n\n${error.message}` : error.message;
    }
  }
  messages.push({ role: "assistant", content: text });
  const seconds = (performance.now() - start) / 1000;
  if (usage) {
    const { completion_tokens: count, prompt_tokens: given } = usage;
    at("state").textContent =
      `${given} + ${count} tokens, ${(count / seconds).toFixed(1)} tokens per second`;
  }
  at("send").textContent = "Send";
  under_way = null;
}

at("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  if (under_way) return under_way.abort();
  const question = at("question").value.trim();
  if (!question) return;
  at("question").value = "";
  messages.push({ role: "user", content: question });
  show("user", question);
  answer();
});

at("question").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  at("ask").requestSubmit();
});

at("anew").addEventListener("click", () => {
  under_way?.abort();
  messages = [];
  at("messages").replaceChildren();
  at("state").textContent = "";
  at("question").focus();
});

const named = async () => {
  const response = await fetch("v1/models", { headers: headers() });
  if (!response.ok) return at("state").textContent = await explained(response);
  at("model").textContent = (await response.json()).data[0].id;
  at("state").textContent = "";
};
at("token").addEventListener("change", named);
await named();
document.documentElement.dataset.ready = "yes";
