window.labQuery = window.location.search;  // as the visitor came; the address moves later
window.labView = (query) => new URLSearchParams(query).get("view") || "controller";
// Views that have read the address; were seen; of whose first two looks (by the tab, by the
// address) one is to be waited for, or is over ("now").
const labReady = {}, labSeen = {}, labDue = {};
const labChosen = () => document.querySelector("button[role=tab].selected")?.textContent.trim().toLowerCase();
window.labSight = (view, isReady) => {  // the address as the visitor came, when a view is first seen
  labReady[view] ||= isReady;
  const isShown = !isReady || view === labChosen() || view === window.labView(window.labQuery);
  if (!labReady[view] || !isShown || labSeen[view]) return "";
  labSeen[view] = true;
  labDue[view] = isReady;
  return window.labQuery || "?";
};
window.labGo = (view, isReady, tries = 100) => {  // press the view's button once it is laid out
  if (isReady !== undefined) {
    if (labDue[view] === isReady) labDue[view] = "now";
    if (labDue[view] !== "now") return;  // the other look is the one
  }
  const button = document.getElementById(view + "-go");
  if (button) {
    labDue[view] = undefined;
    button.click();
  } else if (tries && view === labChosen()) setTimeout(window.labGo, 50, view, isReady, tries - 1);
};
window.labFollow = (view, query) => {
  const shown = window.labView(window.location.search);
  if (window.labArrived && query && view === shown && query !== window.location.search)
    window.history.replaceState(null, "", window.location.pathname + query);
};
window.labTurnTo = (view, query) => {
  const turn = () => {  // a view that is laid out first says so late: the visitor may have gone on
    if (view === (labChosen() ?? view))
      window.history.replaceState(null, "", window.location.pathname + (query || "?view=" + view));
  };
  if (window.labArrived) setTimeout(turn);
};
window.labCopy = async (text, view) => {
  const tell = (words) => { document.getElementById(view + "-copied").textContent = words; };
  const area = Object.assign(document.createElement("textarea"), { value: text });
  try {
    await navigator.clipboard.writeText(text);
    tell("copied");
  } catch {  // not allowed, or the page is not from this machine
    document.body.append(area);
    area.select();
    tell(document.execCommand("copy") ? "copied" : "the browser forbids copying");
    area.remove();
  }
  setTimeout(() => tell(""), 1500);
};
