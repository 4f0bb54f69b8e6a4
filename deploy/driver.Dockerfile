# A driver of penstock: submits jobs to Flink and watches them. It needs what the worker has, Java, and the jars of Beam's
# Flink runner, which are fetched once, here.
#   docker build -f deploy/driver.Dockerfile -t penstock-driver:0.1.0 deploy
FROM penstock-worker:0.1.0

ENV PENSTOCK_CACHE=/opt/penstock/cache
RUN apt-get update \
    && apt-get install -y --no-install-recommends maven openjdk-17-jre-headless \
    && python -m penstock.pipeline.runners.flink.jars \
    && rm -rf /var/lib/apt/lists/* /root/.m2
ENTRYPOINT ["penstock"]
