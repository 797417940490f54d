// Sets the chosen theme before anything is drawn. A classic script, so that it runs first.
(function () {
  "use strict";
  try {
    const theme = localStorage.getItem("penstock.theme");
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  } catch {
    // Storage is refused: the system's theme applies.
  }
})();
