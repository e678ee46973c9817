from foldline.cli.main import main

main()
