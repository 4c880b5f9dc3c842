"use strict";
// Uploads the chosen model file to the API, and selects it in the form.
(() => {
const input = document.querySelector("input[data-upload]");
if (!input) return;
const select = document.querySelector(input.dataset.upload);
const state = document.querySelector("#upload-state");
const buttons = [...input.form.querySelectorAll("button")].filter((button) => !button.disabled);
const usual = state.textContent;

function say(text, failed = false) {
  state.textContent = text;
  state.classList.toggle("error", failed);
  state.classList.toggle("hint", !failed);
  input.setAttribute("aria-invalid", String(failed));
}

function done(request, file) {
  for (const button of buttons) button.disabled = false;
  let found = null;
  try { found = JSON.parse(request.responseText); } catch { /* not JSON */ }
  if (request.status !== 201) {
    say(found?.error?.message.replace("the body", file.name) ?? (request.status ? `The server answered ${request.status}.` : "The server did not answer. Choose the file again."), true);
    input.value = "";
    return;
  }
  let option = [...select.options].find((each) => each.value === found.digest);
  if (!option) {
    option = new Option(`${found.digest.slice(0, 12)} · ${file.name}`, found.digest);
    select.add(option, 1);
  }
  select.value = found.digest;
  say(`${file.name}: ${found.num_tensors} tensors, ${found.num_values.toLocaleString("en")} values in total`);
}

input.addEventListener("change", () => {
  const [file] = input.files;
  if (!file) return say(usual);
  const request = new XMLHttpRequest(); // fetch does not report the progress of an upload
  request.open("PUT", "/v1/models");
  const token = document.querySelector("meta[name=csrf]")?.content;
  if (token) request.setRequestHeader("x-csrf-token", token);
  request.setRequestHeader("content-type", "application/octet-stream");
  request.upload.onprogress = (event) => say(`${Math.floor((100 * event.loaded) / event.total)} % of ${file.name}`);
  request.onloadend = () => done(request, file);
  for (const button of buttons) button.disabled = true;
  request.send(file);
});
})();
