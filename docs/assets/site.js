// Tables and diagrams that are wider than the screen can be scrolled by keyboard.
const scrollable = () =>
  document.querySelectorAll(".md-typeset__scrollwrap, .md-typeset p:has(> img.diagram)").forEach((box) => {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  });
document$.subscribe(() => setTimeout(scrollable));
addEventListener("resize", scrollable);
addEventListener("load", scrollable, true);  // pictures have no width before they are loaded
