.PHONY: quickstart test check clean

quickstart:
	@./scripts/quickstart.sh

test:
	@./scripts/test.sh

check:
	@./scripts/check.sh

clean:
	rm -rf build .venv
