"""The lab: a page to feel the controller. `export_page` needs neither gradio nor a server."""
