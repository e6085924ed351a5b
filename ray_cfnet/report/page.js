"use strict";
// The page is complete without this: it adds search, a switch for the colours, and tooltips.
const root = document.documentElement;
const dark = window.matchMedia("(prefers-color-scheme: dark)");
document.getElementById("theme").addEventListener("click", () => {
  const now = root.dataset.theme || (dark.matches ? "dark" : "light");
  root.dataset.theme = now === "dark" ? "light" : "dark";
});

const box = document.getElementById("search");
if (box) {
  const samples = [...document.querySelectorAll(".samples > li")];
  const found = document.getElementById("found");
  const search = () => {
    const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const sample of samples) {
      const text = sample.textContent.toLowerCase();
      sample.hidden = !words.every((word) => text.includes(word));
      shown += !sample.hidden;
    }
    found.textContent = `${shown} of ${samples.length} shown`;
  };
  box.addEventListener("input", search);
  search();
}

const tip = document.getElementById("tip");
document.addEventListener("pointermove", (event) => {
  const mark = event.target.closest?.('svg [role="graphics-symbol"][aria-label]:not([aria-roledescription="axis"])');
  tip.hidden = !mark;
  if (mark) {
    tip.textContent = mark.getAttribute("aria-label");
    const left = Math.min(event.clientX + 12, window.innerWidth - tip.offsetWidth - 8);
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${Math.max(8, event.clientY - tip.offsetHeight - 10)}px`;
  }
});
