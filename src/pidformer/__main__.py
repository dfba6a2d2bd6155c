from pidformer.cli import main

main()
