"""Small texts for the tests."""


def written(folder, **texts):
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / f"{name}.txt").write_text(text)
    return folder


TEXT = " \n = Title = \n \n a b a <unk> c \n b a  d \n"
